"""Writing a store: whole or not at all, and never over what is not to be replaced."""

import os
from pathlib import Path

import numpy as np
import pytest

from mxstats.activations import ActivationStore, capture_to_store
from mxstats.errors import StoreError

NORM = "model.norm"


def test_an_existing_store_is_only_replaced_when_asked(store, make_store, layers):
    old = store.rows(NORM)
    layers[2].rows = layers[2].rows + 1
    with pytest.raises(StoreError, match=r"exists already; overwrite=True .*--overwrite"):
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


def test_a_parent_that_is_not_writable_is_refused_before_the_model_runs(tmp_path, monkeypatch):
    # Root may write anywhere, so the answer of the system is made up.
    def not_writable(path, mode):
        return not (Path(path) == tmp_path and mode & os.W_OK)

    def never(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(os, "access", not_writable)
    monkeypatch.setattr("mxstats.activations.record.load_model", never)
    with pytest.raises(
        StoreError, match=rf"^cannot write .*: the folder {tmp_path} is not writable"
    ):
        capture_to_store(tmp_path / "store")


@pytest.mark.parametrize("field", ["model", "text", "revision"])
def test_what_could_not_be_read_back_is_not_written(tmp_path, make_store, field):
    with pytest.raises(ValueError, match=rf"^{field} must have no control char.*'a\\x1bb'"):
        make_store(**{field: "a\x1bb"})
    assert list(tmp_path.iterdir()) == []


def test_a_layer_s_name_with_a_control_character_is_not_written(tmp_path, make_store, layers):
    layers[0].name = "a\nb"
    with pytest.raises(ValueError, match=r"the name of a layer must have no control .*'a\\nb'"):
        make_store()
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(5, "Input/output error"), StoreError, r"cannot write .*store: Input/output error"),
        (KeyboardInterrupt("now"), KeyboardInterrupt, "now"),
    ],
)
def test_a_swap_that_fails_half_way_puts_the_old_store_back(
    tmp_path, make_store, layers, monkeypatch, error, raised, message
):
    old = make_store().rows(NORM)
    layers[2].rows = layers[2].rows + 1
    real = Path.rename

    def fail_once(path, target):
        if path.name == "store" and path.parent != tmp_path:
            raise error
        return real(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(raised, match=message):
        make_store(overwrite=True)
    np.testing.assert_array_equal(ActivationStore(tmp_path / "store").rows(NORM), old)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize(("renames", "kept"), [(1, "old"), (2, "new")])
def test_ctrl_c_right_after_a_rename_loses_neither_store(
    tmp_path, make_store, layers, monkeypatch, renames, kept
):
    rows = {"old": make_store().rows(NORM)}
    layers[2].rows = layers[2].rows + 1
    rows["new"] = rows["old"] + 1
    real, done = Path.rename, []

    def interrupted(path, target):
        real(path, target)
        done.append(path)
        if len(done) == renames:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_store(overwrite=True)
    np.testing.assert_array_equal(ActivationStore(tmp_path / "store").rows(NORM), rows[kept])
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
