"""Stores written to URLs: whole or not at all, and what is complete is never lost."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from mxstats.activations import ActivationStore, capture_to_store, merge_stores, upload_store
from mxstats.activations.upload import UploadError
from mxstats.errors import StoreError
from tests.activations import remote
from tests.activations.test_stream import TEXT, assert_same, small_shards, stop_after

NORM = "model.norm"
URL = "flaky://bucket/store"
NO_ROUTE = OSError(113, "No route to host")


@pytest.fixture(autouse=True)
def system(tmp_path, monkeypatch):
    # What is built for a URL is built in the working directory.
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield remote.fresh()
    remote.fresh()


@pytest.fixture
def write(layers, about):
    def write(url=URL, **options):
        from mxstats.activations import write_store

        return write_store(url, layers, **{**about, "rows_per_shard": 4, **options})

    return write


def files(system):
    return sorted(path.removeprefix("/bucket/store/") for path in system.store)


def in_work():
    return [path.name for path in Path.cwd().iterdir()]


def kept_in(error):
    return Path(re.search(r"the store is complete in (\S+),", str(error)).group(1))


def test_a_store_is_written_as_in_a_folder(write, store, system):
    far = write()
    assert [one.sha256 for one in far.manifest.shards] == [
        one.sha256 for one in store.manifest.shards
    ]
    for layer in store.layers:
        np.testing.assert_array_equal(far.rows(layer.name), store.rows(layer.name))
    far.verify()
    sent = [file for method, file in system.calls if method in ("put_file", "pipe_file")]
    assert sent[-2:] == ["tokens.parquet", "manifest.json"]
    assert [file.partition("-")[0] for file in sent[1:-2]] == [f"{i:05d}" for i in range(5)]
    assert in_work() == []


def test_a_store_that_is_there_is_only_replaced_when_asked(write, layers, system):
    old = write().rows(NORM)
    before = files(system)
    layers[2].rows = layers[2].rows + 1
    with pytest.raises(StoreError, match=r"^flaky://bucket/store exists already; overwrite=True"):
        write()
    assert files(system) == before
    replaced = write(overwrite=True)
    np.testing.assert_array_equal(replaced.rows(NORM), old + 1)
    replaced.verify()
    # Nothing of the old store stays but what the new one shares with it.
    assert set(files(system)) == {
        "manifest.json", "tokens.parquet", *(one.file for one in replaced.manifest.shards)
    }  # fmt: skip


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_store_is_never_replaced(write, system, overwrite):
    remote.put(system, "/bucket/store/thesis.tex", b"years of work")
    message = "is not replaced, for it is no store" if overwrite else "exists already"
    with pytest.raises(StoreError, match=message):
        write(overwrite=overwrite)
    assert files(system) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("put_file", "00000"),
        ("put_file", "00003"),
        ("pipe_file", "tokens"),
        ("pipe_file", "manifest"),
    ],
)
@pytest.mark.parametrize("error", [NO_ROUTE, remote.NoCredentialsError("expired")])
def test_a_failed_upload_leaves_no_manifest_and_a_complete_local_store(
    write, layers, system, method, part, error
):
    system.fails[method] = remote.failing(error, part)
    with pytest.raises(
        UploadError, match=r"^cannot upload to flaky://bucket/store: .*(rou|exp)"
    ) as caught:
        write()
    assert not {"manifest.json", "tokens.parquet"} & set(files(system))
    with pytest.raises(StoreError, match="is not an activation store"):
        ActivationStore(URL)
    kept = kept_in(caught.value)
    ActivationStore(kept).verify()
    # The message says what to do, and what has arrived is not sent again.
    arrived = {name.rpartition("/")[2] for name in files(system)}
    system.fails.clear()
    system.calls.clear()
    far = upload_store(kept, URL)
    far.verify()
    np.testing.assert_array_equal(far.rows(NORM), layers[2].rows)
    sent = {file for method, file in system.calls if method == "put_file"}
    assert not sent & arrived
    assert len(sent | arrived) == 5


@pytest.mark.parametrize(
    ("method", "part"), [("put_file", "00003"), ("pipe_file", "tokens"), ("pipe_file", "manifest")]
)
def test_a_failed_replacement_leaves_the_old_store_whole(
    write, layers, about, system, method, part
):
    old = write().rows(NORM)
    for layer in layers:
        layer.rows = layer.rows + 1
    about["token_ids"] = [one + 1 for one in about["token_ids"]]
    broken = remote.failing(NO_ROUTE, part)
    left = [1]

    def once(path):
        if part in path and left.pop():
            left.append(0)
            broken(path)

    system.fails[method] = once
    with pytest.raises(UploadError):
        write(overwrite=True)
    found = ActivationStore(URL)
    np.testing.assert_array_equal(found.rows(NORM), old)
    assert found.tokens()["token_id"].tolist() == [one - 1 for one in about["token_ids"]]
    found.verify()


def test_a_file_that_arrives_cut_is_noticed(write, system, monkeypatch):
    real = system.put_file

    def cut(self, lpath, rpath, **options):
        real(self, lpath, rpath, **options)
        remote.put(system, self._strip_protocol(rpath), b"half")

    monkeypatch.setattr(system, "put_file", cut)
    with pytest.raises(UploadError, match=r"shards/00000-\w+.safetensors has 4 bytes there instea"):
        write()
    assert "manifest.json" not in files(system)


def test_two_writers_at_once_lose_nothing(write, layers, system):
    first = [True]

    def other_is_faster(path):
        if "tokens" in path and first:
            first.clear()
            write()

    system.fails["pipe_file"] = other_is_faster
    with pytest.raises(UploadError, match="another writer has put a store there in the mean") as e:
        write()
    ActivationStore(URL).verify()
    ActivationStore(kept_in(e.value)).verify()


def test_old_files_that_cannot_be_removed_are_told(write, layers, system):
    write()
    layers[2].rows = layers[2].rows + 1
    system.fails["rm_file"] = remote.failing(NO_ROUTE, "00000")
    with pytest.warns(
        UserWarning, match=r"is replaced, and shards/00000-\w+.safetensors of the ol"
    ):
        write(overwrite=True).verify()


def never(*_, **__):
    raise AssertionError("the model was loaded")


def test_what_cannot_be_written_is_refused_before_the_model_runs(system, monkeypatch, tmp_path):
    monkeypatch.setattr("mxstats.activations.record.load_model", never)
    system.fails["pipe_file"] = remote.failing(PermissionError(13, "Access denied"))
    with pytest.raises(StoreError, match=r"^cannot write flaky://bucket/store: Access denied"):
        capture_to_store(URL)
    system.fails["pipe_file"] = remote.failing(NotImplementedError())
    with pytest.raises(StoreError, match=r"store: this kind of file system cannot be written"):
        capture_to_store(URL)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StoreError, match=rf"the folder {tmp_path}/work is not writable \(a store"):
        capture_to_store(URL)


def test_only_folders_are_uploaded_and_only_to_urls(store, tmp_path):
    with pytest.raises(ValueError, match=r"^url must be like 's3://bucket/store', got"):
        upload_store(store.path, str(tmp_path / "x"))
    upload_store(store.path, URL)
    with pytest.raises(ValueError, match=r"^path must be a folder of this machine, got 'flaky"):
        upload_store(URL, "flaky://bucket/other")


def test_a_damaged_store_is_not_uploaded(store, system):
    path = store.path / store.manifest.shards[1].file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"00001.safetensors of .* it is truncated"):
        upload_store(store.path, URL)
    assert files(system) == []


def test_stores_merge_from_and_to_urls(tmp_path, store, write):
    near = merge_stores(store, store, tmp_path / "near")
    far = merge_stores(write(), store.path, "flaky://bucket/both")
    far.verify()
    for layer in near.layers:
        np.testing.assert_array_equal(far.rows(layer.name), near.rows(layer.name))
    assert far.tokens().equals(near.tokens())


@pytest.fixture
def settings(tmp_path, tiny_folder, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    small_shards(monkeypatch)
    return {"model": tiny_folder, "text": text, "tokens": 84, "window": 8, "block_size": 8}


@pytest.mark.parametrize("keep_rows", [None, 20, 0])
def test_a_capture_to_a_url_is_that_to_a_folder(tmp_path, settings, keep_rows):
    plain = capture_to_store(tmp_path / "plain", keep_rows=keep_rows, **settings)
    far = capture_to_store(URL, keep_rows=keep_rows, **settings)
    assert_same(far, plain)
    assert in_work() == []


def test_an_interrupted_capture_to_a_url_is_resumed_from_its_directory(
    tmp_path, settings, system, monkeypatch
):
    plain = capture_to_store(tmp_path / "plain", **settings)
    with pytest.raises(KeyboardInterrupt):
        capture_to_store(URL, progress=stop_after(5), **settings)
    assert files(system) == []
    [partial] = in_work()
    assert re.fullmatch(r"\.store-[0-9a-f]{8}\.partial", partial)
    with pytest.raises(
        StoreError, match=rf"interrupted capture of {URL} is in .*{partial}: resume"
    ):
        capture_to_store(URL, **settings)
    read = []
    far = capture_to_store(URL, resume=True, progress=lambda done, _: read.append(done), **settings)
    assert read[0] == 32
    assert_same(far, plain)
    assert in_work() == []


def test_a_capture_that_failed_to_upload_is_only_uploaded(tmp_path, settings, system):
    plain = capture_to_store(tmp_path / "plain", **settings)
    system.fails["put_file"] = remote.failing(NO_ROUTE, "00002")
    with pytest.raises(UploadError, match=r"No route .*upload_store sends it, as resume=True") as e:
        capture_to_store(URL, **settings)
    assert "manifest.json" not in files(system)
    ActivationStore(kept_in(e.value)).verify()
    system.fails.clear()
    system.calls.clear()
    read = []
    far = capture_to_store(URL, resume=True, progress=lambda done, _: read.append(done), **settings)
    assert read == [84]
    assert sum(method == "put_file" for method, _ in system.calls) == 5
    assert_same(far, plain)
    assert in_work() == []


def test_a_manifest_names_its_files(write, system):
    write()
    record = json.loads(system.store["/bucket/store/manifest.json"].getvalue())
    assert {one["file"] for one in record["shards"]} < set(files(system))
