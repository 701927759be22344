import shutil

import numpy as np
import pytest

from mxstats.activations import ActivationStore
from mxstats.errors import StoreError

NORM = "model.norm"


def shard(store, number=1):
    return store.path / f"shards/{number:05d}.safetensors"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def delete(path):
    path.unlink()


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


FAULTS = pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"shard shards/00001.safetensors of .* it is truncated"),
        (lengthen, r"shard shards/00001.safetensors of .* it is altered"),
        (flip_a_bit, r"shard shards/00001.safetensors of .* is altered: its SHA-256"),
        (delete, r"shard shards/00001.safetensors of .* is missing"),
    ],
)


@FAULTS
def test_a_damaged_shard_is_named_and_the_others_stay_readable(store, layers, damage, message):
    damage(shard(store))
    with pytest.raises(StoreError, match=message):
        store.rows(NORM)
    rows = store.rows(NORM, shards=[0, 2])
    np.testing.assert_array_equal(rows, layers[2].rows[[0, 1, 2, 3, 8, 9]])
    with pytest.raises(StoreError, match=message):
        store.verify()


@FAULTS
def test_damage_after_the_first_reading_is_found(store, damage, message):
    store.rows(NORM)
    damage(shard(store))
    with pytest.raises(StoreError, match=message):
        store.rows(NORM)


def test_a_shard_that_is_a_directory_is_called_one(store):
    path = shard(store)
    path.unlink()
    path.mkdir()
    message = r"^shard shards/00001\.safetensors of .*store is a directory$"
    with pytest.raises(StoreError, match=message):
        store.rows(NORM)
    with pytest.raises(StoreError, match=message):
        store.verify()


def test_every_fault_is_in_one_message(store):
    truncate(shard(store, 0))
    delete(shard(store, 3))
    (store.path / "tokens.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"00000.*truncated; .*00003.*missing; tokens.parquet"):
        store.verify()


def test_a_checksum_is_computed_once_a_process(store, monkeypatch):
    from mxstats.activations import shards

    computed = []
    real = shards.file_sha256

    def counted(path):
        computed.append(path.name)
        return real(path)

    monkeypatch.setattr(shards, "file_sha256", counted)
    for name in (NORM, NORM, "model.layers.0.input_layernorm"):
        ActivationStore(store.path).rows(name, shards=[0])
    assert computed == ["00000.safetensors"]
    store.verify()
    assert len(computed) == 1 + 5


def test_tokens_that_are_not_the_manifest_s(store, make_store):
    other = make_store("other", token_ids=[1, 4, 4, 5, 6, 1, 8, 9, 2, 99])
    shutil.copy(other.path / "tokens.parquet", store.path / "tokens.parquet")
    with pytest.raises(StoreError, match=r"tokens\.parquet of .* is altered"):
        store.tokens()
    (store.path / "tokens.parquet").unlink()
    with pytest.raises(StoreError, match=r"tokens\.parquet of .* is missing"):
        store.tokens()
