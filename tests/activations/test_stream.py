"""Stores written while the model runs: interrupted, resumed, sampled, shared by processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mxstats.activations import ActivationStore, capture, capture_to_store, progress, stream
from mxstats.errors import CaptureError, StoreError

TEXT = " ".join(f"w{i * i % 61}" for i in range(400))
NORM = "model.norm"


@pytest.fixture
def settings(tmp_path, tiny_folder, monkeypatch):
    """Options of a capture of 84 tokens in eleven windows; a shard is written every 16."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    small_shards(monkeypatch)
    return {"model": tiny_folder, "text": text, "tokens": 84, "window": 8, "block_size": 8}


def small_shards(monkeypatch):
    real = stream.streaming.__wrapped__
    defaults = {**real.__kwdefaults__, "per_shard": 16}
    monkeypatch.setattr(real, "__kwdefaults__", defaults)


def assert_same(one, other, *, exact=True):
    """The same rows, tokens and statistics; the files may be cut otherwise."""
    assert one.layers == other.layers
    for layer in one.layers:
        np.testing.assert_array_equal(one.rows(layer.name), other.rows(layer.name))
    pd.testing.assert_frame_equal(one.tokens(), other.tokens())
    assert one.manifest.tokens_read == other.manifest.tokens_read
    if exact:
        pd.testing.assert_frame_equal(one.statistics(), other.statistics(), check_exact=True)
    else:
        # Sums of 84 rows in another order, in float64: 1e-14 of the sum of magnitudes, which is at
        # most some 1e3 times a sum in which the signs cancel.
        pd.testing.assert_frame_equal(one.statistics(), other.statistics(), rtol=1e-9, atol=1e-9)
    one.verify()
    other.verify()


def stop_after(passes):
    def report(done, total):
        stop_after.calls += 1
        if stop_after.calls == passes + 1:
            raise KeyboardInterrupt

    stop_after.calls = 0
    return report


def test_shards_are_written_while_the_model_runs(tmp_path, settings):
    found = []
    store = capture_to_store(
        tmp_path / "s",
        progress=lambda *_: found.append(len(list(tmp_path.glob(".s.partial/shards/*")))),
        **settings,
    )
    # Two windows of 8 fill a shard; the progress is told behind each window.
    assert found == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [shard.rows for shard in store.manifest.shards] == [16] * 5 + [4]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("keep_rows", [None, 7, 0])
def test_an_interrupted_capture_is_resumed(tmp_path, settings, keep_rows):
    options = {**settings, "keep_rows": keep_rows}
    plain = capture_to_store(tmp_path / "plain", **options)
    with pytest.raises(KeyboardInterrupt):
        capture_to_store(tmp_path / "s", progress=stop_after(5), **options)
    assert not (tmp_path / "s").exists()
    read = []
    store = capture_to_store(
        tmp_path / "s", resume=True, progress=lambda done, _: read.append(done), **options
    )
    # Four windows were in complete shards; of a sample, what was still in memory is read again.
    assert read[0] == (0 if keep_rows == 7 else 32)
    assert_same(store, plain)
    assert store.manifest.shards == plain.manifest.shards


def test_resuming_without_anything_to_resume_begins_anew(tmp_path, settings):
    assert_same(
        capture_to_store(tmp_path / "a", resume=True, **settings),
        capture_to_store(tmp_path / "b", **settings),
    )


def test_an_interrupted_capture_is_neither_lost_nor_mixed_up(tmp_path, settings):
    with pytest.raises(KeyboardInterrupt):
        capture_to_store(tmp_path / "s", progress=stop_after(5), **settings)
    with pytest.raises(StoreError, match=r"interrupted capture of .*s is in .*\.s\.partial: res"):
        capture_to_store(tmp_path / "s", **settings)
    with pytest.raises(StoreError, match=r"has seed 0, not 3: resume it with the same settings"):
        capture_to_store(tmp_path / "s", resume=True, **{**settings, "seed": 3})
    with pytest.raises(StoreError, match=r"has block_size 8, not 4"):
        capture_to_store(tmp_path / "s", resume=True, **{**settings, "block_size": 4})
    plain = capture_to_store(tmp_path / "plain", **settings)
    assert_same(capture_to_store(tmp_path / "s", overwrite=True, **settings), plain)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("shards/000-00000.safetensors", b"", "000-00000.safetensors of .* it is truncated"),
        ("state-000-00002.safetensors", b"x", "state-000-00002.safetensors of .* is altered"),
        ("progress-000.json", b"{", "progress-000.json cannot be read"),
        ("progress-000.json", b'{"version": 9}', "has version 9; this mxstats reads 1"),
        ("settings.json", b"[]", "settings.json is not the progress of a capture"),
    ],
)
def test_a_damaged_unfinished_capture(tmp_path, settings, name, damage, message):
    with pytest.raises(KeyboardInterrupt):
        capture_to_store(tmp_path / "s", progress=stop_after(5), **settings)
    (tmp_path / ".s.partial" / name).write_bytes(damage)
    with pytest.raises(StoreError, match=message):
        capture_to_store(tmp_path / "s", resume=True, **settings)


KILLED = """
import os, signal, sys
from pathlib import Path
from mxstats.activations import capture_to_store, stream

real = stream.streaming.__wrapped__
real.__kwdefaults__["per_shard"] = 16
folder, out = map(Path, sys.argv[1:])

def die(done, total):
    if done == 40:
        os.kill(os.getpid(), signal.SIGKILL)

capture_to_store(
    out, model=folder / "tiny-llama", text=folder / "text.txt", tokens=84, window=8, block_size=8,
    progress=die,
)
"""


def test_a_killed_process_is_resumed(tmp_path, settings):
    plain = capture_to_store(tmp_path / "plain", **settings)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, tmp_path / "s"])
    assert done.returncode == -signal.SIGKILL
    assert_same(capture_to_store(tmp_path / "s", resume=True, **settings), plain)


TORCHRUN = """
import sys
from pathlib import Path
from mxstats.activations import capture_to_store, stream

stream.streaming.__wrapped__.__kwdefaults__["per_shard"] = 16
folder, keep_rows = Path(sys.argv[1]), int(sys.argv[2])
capture_to_store(
    folder / "s", model=folder / "tiny-llama", text=folder / "text.txt", tokens=84, window=8,
    block_size=8, keep_rows=keep_rows or None,
)
"""


@pytest.mark.parametrize("keep_rows", [0, 20])
def test_torchrun_writes_the_store_of_one_process(tmp_path, settings, keep_rows):
    (tmp_path / "script.py").write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "--standalone", tmp_path / "script.py", tmp_path, str(keep_rows)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    plain = capture_to_store(tmp_path / "plain", keep_rows=keep_rows or None, **settings)
    assert_same(ActivationStore(tmp_path / "s"), plain, exact=False)


def test_rows_of_the_sample_are_the_tokens_rows(tmp_path, settings):
    every = capture_to_store(tmp_path / "every", **settings)
    store = capture_to_store(tmp_path / "s", keep_rows=20, seed=4, **settings)
    tokens = store.tokens()
    assert (len(tokens), store.manifest.tokens, store.manifest.tokens_read) == (20, 20, 84)
    assert tokens["token"].is_monotonic_increasing
    chosen = every.tokens().iloc[tokens["token"]].reset_index(drop=True)
    for column in ("token_id", "text", "position", "token"):
        assert tokens[column].tolist() == chosen[column].tolist()
    for layer in store.layers:
        np.testing.assert_array_equal(
            store.rows(layer.name), every.rows(layer.name)[tokens["token"]]
        )
    pd.testing.assert_frame_equal(store.statistics(), every.statistics(), check_exact=True)


def test_capture_writes_a_store_of_its_own_passes(tmp_path, tiny_qwen3, ids):
    with torch.no_grad():
        with capture(tiny_qwen3, out=tmp_path / "s", dtype="float32", block_size=8) as seen:
            tiny_qwen3(ids)
            tiny_qwen3(ids + 1)
        with capture(tiny_qwen3, block_size=8) as plain:
            tiny_qwen3(ids)
            tiny_qwen3(ids + 1)
    store = ActivationStore(tmp_path / "s")
    store.verify()
    assert store.tokens()["window"].tolist() == [0] * 7 + [1] * 7
    query = store.layer("model.layers.0.self_attn.q_norm")
    assert (query.rows, query.group) == (56, 4)
    for layer in plain:
        np.testing.assert_array_equal(store.rows(layer.name), layer.rows)
    pd.testing.assert_frame_equal(store.statistics(), plain.table(), check_exact=True)
    # Nothing stays in memory.
    assert seen[NORM].sample.pending == 0


def test_an_exception_half_way_leaves_what_can_be_resumed(tmp_path, tiny_llama, ids, monkeypatch):
    small_shards(monkeypatch)

    def run(resume, stop):
        with (
            torch.no_grad(),
            capture(tiny_llama, out=tmp_path / "s", resume=resume, block_size=8) as seen,
        ):
            for number in range(seen.tokens_read // 7, 8):
                if number == stop:
                    raise ZeroDivisionError
                tiny_llama((ids + number) % 64)

    with pytest.raises(ZeroDivisionError):
        run(False, 5)
    assert not (tmp_path / "s").exists()
    run(True, None)
    store = ActivationStore(tmp_path / "s")
    expected = [int(i) for n in range(8) for i in (ids[0] + n) % 64]
    assert store.tokens()["token_id"].tolist() == expected
    embedding = tiny_llama.model.embed_tokens.weight.detach().to(torch.bfloat16).float()
    np.testing.assert_array_equal(store.rows("model.layers.0.input_layernorm"), embedding[expected])


def test_two_writers_at_once_have_their_own_shards_and_lose_nothing(tmp_path, tiny_llama, ids):
    first, second = (capture(tiny_llama, out=tmp_path / "s", block_size=8) for _ in range(2))
    with torch.no_grad():
        first.__enter__()
        second.__enter__()
        tiny_llama(ids)
        second.__exit__(None, None, None)
        with pytest.raises(StoreError, match=r"written by another process .* complete in (.*): re"):
            first.__exit__(None, None, None)
    ActivationStore(tmp_path / "s").verify()
    kept = ActivationStore(progress.partial_folder(tmp_path / "s") / "store")
    assert_same(kept, ActivationStore(tmp_path / "s"))


def test_a_full_disk_is_one_clear_error(tmp_path, settings, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stream, "write_shard", full)
    with pytest.raises(StoreError, match=r"cannot write .*s: No space left on device"):
        capture_to_store(tmp_path / "s", **settings)
    monkeypatch.undo()
    small_shards(monkeypatch)
    assert_same(
        capture_to_store(tmp_path / "s", resume=True, **settings),
        capture_to_store(tmp_path / "plain", **settings),
    )


def test_rows_that_overflow_the_store_are_named(tmp_path, tiny_llama, ids):
    tiny_llama.model.embed_tokens.weight.data[5] = torch.finfo(torch.float32).max
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"input_layernorm has the value 3.40282e\+38"),
        capture(tiny_llama, out=tmp_path / "s"),
    ):
        tiny_llama(ids)


def test_modules_that_see_other_tokens_are_named(tmp_path, tiny_llama, ids):
    def run():
        with torch.no_grad(), capture(tiny_llama, out=tmp_path / "s"):
            tiny_llama(ids)
            tiny_llama.model.norm(torch.ones(3, 32))

    with pytest.raises(CaptureError, match=r"model.norm saw other tokens than the model reads"):
        run()
