"""Stores read from URLs: as from a folder, each file fetched once, and every fault named."""

import gc
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mxstats.activations import ActivationStore, upload_store
from mxstats.activations.places import is_url
from mxstats.errors import StoreError
from tests.activations import remote

NORM = "model.norm"
URL = "flaky://bucket/store"


@pytest.fixture
def system():
    yield remote.fresh()
    remote.fresh()


@pytest.fixture
def far(system, store):
    """The store of the other tests, at a URL that nothing has read yet."""
    far = upload_store(store.path, URL)
    system.calls.clear()
    return far


def shard_path(far, number=1):
    return f"/bucket/store/{far.manifest.shards[number].file}"


def test_a_url_reads_as_the_folder_does(store, far, system):
    assert far.path == URL
    assert far.layers == store.layers
    for layer in store.layers:
        np.testing.assert_array_equal(far.rows(layer.name), store.rows(layer.name))
        np.testing.assert_array_equal(
            far.rows(layer.name, shards=[2]), store.rows(layer.name, shards=[2])
        )
    pd.testing.assert_frame_equal(far.tokens(), store.tokens())
    far.verify()
    # The bytes are those of the files, whatever the files are called there.
    for here, there in zip(store.manifest.shards, far.manifest.shards, strict=True):
        found = system.store[f"/bucket/store/{there.file}"].getvalue()
        assert found == (store.path / here.file).read_bytes()
    assert ActivationStore(far.path).manifest == far.manifest


def test_statistics_read_as_from_the_folder(tmp_path, tiny_llama, ids, system):
    import torch

    from mxstats.activations import capture

    with torch.no_grad(), capture(tiny_llama, out=tmp_path / "s", block_size=8):
        tiny_llama(ids)
    near = ActivationStore(tmp_path / "s")
    far = upload_store(tmp_path / "s", URL)
    pd.testing.assert_frame_equal(far.statistics(), near.statistics(), check_exact=True)
    one = far.layer_statistics(NORM)
    assert one.block_size == 8
    assert int(one.rows) == 7


def test_each_file_is_fetched_once_and_only_when_needed(far, system):
    store = ActivationStore(URL)
    assert system.calls == [("cat_file", "manifest.json")]
    store.rows(NORM, shards=[1])
    for layer in store.layers:
        store.rows(layer.name)
    fetched = [file for method, file in system.calls if method == "get_file"]
    assert sorted(fetched) == sorted(Path(one.file).name for one in store.manifest.shards)
    assert fetched[0] == Path(store.manifest.shards[1].file).name


def test_another_file_system_an_archive(tmp_path, store):
    shutil.make_archive(str(tmp_path / "s"), "zip", store.path)
    found = ActivationStore(f"zip://::{tmp_path / 's.zip'}")
    np.testing.assert_array_equal(found.rows(NORM), store.rows(NORM))
    found.verify()


def test_a_url_of_this_machine_is_a_folder(store):
    found = ActivationStore(f"file://{store.path}")
    assert found.path == store.path
    found.verify()


def test_copies_go_with_the_store(far):
    store = ActivationStore(URL)
    store.rows(NORM)
    copies = store.place._copies
    assert len(list((copies / "shards").iterdir())) == 3
    del store
    gc.collect()
    assert not copies.exists()


def truncate(system, path):
    remote.put(system, path, system.store[path].getvalue()[:-1])


def delete(system, path):
    del system.store[path]


FAULTS = pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"^shard shards/00001-\w+.safetensors of flaky://bucket/store .*truncated$"),
        (remote.flip_a_bit, r"^shard .* of flaky://bucket/store is altered: its SHA-256"),
        (delete, r"^shard .* of flaky://bucket/store is missing$"),
    ],
)


@FAULTS
def test_a_damaged_shard_is_named_and_the_others_stay_readable(
    far, system, layers, damage, message
):
    path = shard_path(far)
    whole = system.store[path].getvalue()
    damage(system, path)
    with pytest.raises(StoreError, match=message):
        far.rows(NORM)
    rows = far.rows(NORM, shards=[0, 2])
    np.testing.assert_array_equal(rows, layers[2].rows[[0, 1, 2, 3, 8, 9]])
    # A transfer may have been at fault: what was found damaged is not kept.
    remote.put(system, path, whole)
    np.testing.assert_array_equal(far.rows(NORM), layers[2].rows)


@FAULTS
def test_verify_looks_at_the_files_and_not_at_the_copies(far, system, damage, message):
    far.rows(NORM)
    damage(system, shard_path(far))
    with pytest.raises(StoreError, match=message):
        far.verify()


def test_damaged_tokens(far, system):
    remote.put(system, "/bucket/store/tokens.parquet", b"PAR1")
    with pytest.raises(StoreError, match=r"^tokens.parquet of flaky://bucket/store cannot be read"):
        far.tokens()
    delete(system, "/bucket/store/tokens.parquet")
    far.place.forget()
    with pytest.raises(StoreError, match=r"^tokens.parquet of flaky://bucket/store is missing"):
        far.tokens()


def test_a_manifest_from_a_newer_version(far, system):
    path = "/bucket/store/manifest.json"
    record = json.loads(system.store[path].getvalue()) | {"format_version": 99}
    remote.put(system, path, json.dumps(record).encode())
    with pytest.raises(StoreError, match=rf"^{URL}/manifest.json has format version 99, written"):
        ActivationStore(URL)


def test_no_store_at_a_url(far, system):
    with pytest.raises(StoreError, match=r"^flaky://elsewhere is not .*: it does not exist$"):
        ActivationStore("flaky://elsewhere")
    delete(system, "/bucket/store/manifest.json")
    with pytest.raises(StoreError, match=rf"^{URL} is not .*: it has no manifest.json$"):
        ActivationStore(URL)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://bucket", r"nowhere://bucket cannot be opened: Protocol not known: nowhere"),
        ("sftp://", r"sftp:// (needs a package|cannot be opened)"),
    ],
)
def test_a_url_that_cannot_be_opened(url, message):
    with pytest.raises(StoreError, match=message):
        ActivationStore(url)


def test_a_missing_package_is_named(monkeypatch):
    from fsspec.registry import known_implementations

    kind = {"class": "no_such_package.System", "err": "Install no-such-package to\naccess absent"}
    monkeypatch.setitem(known_implementations, "absent", kind)
    with pytest.raises(StoreError) as caught:
        ActivationStore("absent://bucket/store")
    assert str(caught.value) == (
        "absent://bucket/store needs a package that is not installed: "
        "Install no-such-package to access absent"
    )


def test_a_path_that_was_a_url_says_why_there_is_nothing():
    with pytest.raises(StoreError, match=r"does not exist \(a URL has to be a string"):
        ActivationStore(Path("s3://bucket/store"))


def test_errors_of_a_bucket_s_library_are_one_line(far, system):
    system.fails["get_file"] = remote.failing(remote.NoCredentialsError("log in\nfirst"))
    with pytest.raises(StoreError, match=r"cannot be read: NoCredentialsError: log in first$"):
        far.rows(NORM)
    system.fails["cat_file"] = remote.failing(PermissionError(13, "Access denied"))
    with pytest.raises(StoreError, match=rf"^cannot read {URL}/manifest.json: .*Access denied"):
        ActivationStore(URL)


def test_faults_of_a_program_are_not_taken_for_faults_of_a_file(far, system):
    system.fails["get_file"] = remote.failing(KeyError("bug"))
    with pytest.raises(KeyError):
        far.rows(NORM)


def test_a_full_disk_for_the_copies(far, system):
    system.fails["get_file"] = remote.failing(OSError(28, "No space left on device"))
    with pytest.raises(StoreError, match=r"does not fit on the disk of .*: make room, or set TMPD"):
        far.rows(NORM)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/x", True),
        ("memory://x", True),
        ("zip://::s3://bucket/x.zip", True),
        ("simplecache::s3://bucket/x", True),
        ("student-t:5", False),
        ("a/b", False),
        ("gaussian", False),
        (Path("s3://bucket/x"), False),
        ("", False),
    ],
)
def test_what_is_a_url(text, expected):
    assert is_url(text) == expected
