import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mxstats.activations import ActivationStore
from mxstats.errors import StoreError

NORM = "model.norm"


@pytest.fixture
def store(make_store):
    return make_store()


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


def test_a_shard_of_another_store_is_refused(store, make_store):
    from hashlib import sha256

    other = make_store("other", dtype="float32")
    shutil.copy(shard(other), shard(store))
    data = shard(store).read_bytes()
    edit(store, lambda m: m["shards"][1].update(sha256=sha256(data).hexdigest(), bytes=len(data)))
    with pytest.raises(StoreError, match=r"holds model.norm as F32 \[4, 6\] instead of BF16"):
        ActivationStore(store.path).rows(NORM)


def edit(store, change):
    path = store.path / "manifest.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("format"), "is not the manifest of an activation store"),
        (lambda m: m.update(format_version=2), "version 2, written by a newer mxstats"),
        (lambda m: m.update(format_version="1"), "format_version '1', which is no version"),
        (lambda m: m.pop("layers"), "lacks layers"),
        (lambda m: m["layers"][0].pop("role"), r"lacks layers\.role"),
        (lambda m: m["layers"][0].update(role="x"), r"layers\.role is 'x'"),
        (lambda m: m["layers"][0].update(rows=-1), r"layers\.rows is -1"),
        (lambda m: m["shards"][0].update(file="../x"), r"shards\.file is '\.\./x'"),
        (lambda m: m["shards"][0].update(file="/etc/x"), r"shards\.file is '/etc/x'"),
        (lambda m: m["shards"][1].update(first_row=5), r"shards\.first_row is 5"),
        (lambda m: m["shards"].pop(), r"the shards hold 16 of 20 rows"),
        (lambda m: m.update(rows=21), r"rows is 21"),
        (lambda m: m.update(dtype="float16"), r"dtype is 'float16'"),
        (lambda m: m.update(shards={}), r"shards is {}"),
    ],
)
def test_a_manifest_that_does_not_hold_together(store, change, message):
    edit(store, change)
    with pytest.raises(StoreError, match=message) as caught:
        ActivationStore(store.path)
    assert "\n" not in str(caught.value)


def test_no_store_at_all(tmp_path, store):
    with pytest.raises(StoreError, match=r"gone is not an activation store: it does not exist"):
        ActivationStore(tmp_path / "gone")
    with pytest.raises(StoreError, match=r"it has no manifest\.json"):
        ActivationStore(tmp_path)
    (store.path / "manifest.json").write_text('{"format": ')
    with pytest.raises(StoreError, match=r"manifest\.json is not JSON"):
        ActivationStore(store.path)
    (store.path / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"cannot read .*manifest\.json"):
        ActivationStore(store.path)
    (store.path / "manifest.json").write_text("[]")
    with pytest.raises(StoreError, match=r"is not the manifest of an activation store"):
        ActivationStore(store.path)


def test_tokens_that_are_not_the_manifest_s(store, make_store):
    other = make_store("other", token_ids=[1, 4, 4, 5, 6, 1, 8, 9, 2, 99])
    shutil.copy(other.path / "tokens.parquet", store.path / "tokens.parquet")
    with pytest.raises(StoreError, match=r"tokens\.parquet of .* is altered"):
        store.tokens()
    (store.path / "tokens.parquet").unlink()
    with pytest.raises(StoreError, match=r"tokens\.parquet of .* is missing"):
        store.tokens()


def test_an_existing_store_is_only_replaced_when_asked(store, make_store, layers):
    old = store.rows(NORM)
    layers[2].rows = layers[2].rows + 1
    with pytest.raises(StoreError, match=r"exists already; overwrite=True replaces it"):
        make_store()
    np.testing.assert_array_equal(ActivationStore(store.path).rows(NORM), old)
    make_store(overwrite=True)
    np.testing.assert_array_equal(ActivationStore(store.path).rows(NORM), old + 1)
    assert [path.name for path in store.path.parent.iterdir()] == ["store"]


def test_a_folder_that_is_no_store_is_never_replaced(tmp_path, make_store):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match=r"is not replaced, for it is no store"):
        make_store(overwrite=True)
    assert (tmp_path / "store" / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_is_used(tmp_path, make_store):
    (tmp_path / "store").mkdir()
    make_store().verify()


def test_a_missing_parent(make_store):
    with pytest.raises(StoreError, match=r"the folder .*nowhere does not exist"):
        make_store("nowhere/store")


@pytest.mark.parametrize(
    ("error", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left"), StoreError)],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_write_leaves_nothing_and_loses_nothing(
    tmp_path, make_store, monkeypatch, error, raised, overwrite
):
    before = make_store().rows(NORM) if overwrite else None

    def fail(*_):
        raise error

    # The tokens are written after the shards, the manifest after the tokens.
    monkeypatch.setattr("mxstats.activations.write.write_tokens", fail)
    with pytest.raises(raised):
        make_store(overwrite=overwrite)
    if before is None:
        assert list(tmp_path.iterdir()) == []
    else:
        assert [path.name for path in tmp_path.iterdir()] == ["store"]
        np.testing.assert_array_equal(ActivationStore(tmp_path / "store").rows(NORM), before)


def test_a_swap_that_fails_half_way_puts_the_old_store_back(
    tmp_path, make_store, layers, monkeypatch
):
    old = make_store().rows(NORM)
    layers[2].rows = layers[2].rows + 1
    real = Path.rename

    def fail_once(path, target):
        if path.name == "store" and path.parent != tmp_path:
            raise OSError(5, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(StoreError, match=r"cannot write .*store: Input/output error"):
        make_store(overwrite=True)
    np.testing.assert_array_equal(ActivationStore(tmp_path / "store").rows(NORM), old)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_two_writers_at_once_lose_nothing(tmp_path, make_store, monkeypatch):
    from mxstats.activations import write

    real = write.write_tokens

    def other_writer_is_faster(*arguments):
        monkeypatch.setattr(write, "write_tokens", real)
        make_store()
        real(*arguments)

    monkeypatch.setattr(write, "write_tokens", other_writer_is_faster)
    with pytest.raises(StoreError, match="cannot write"):
        make_store()
    ActivationStore(tmp_path / "store").verify()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
