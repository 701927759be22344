"""Disks that are too small, found before the first pass, or full half-way: nothing is lost."""

import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

from mxstats.activations import capture, capture_to_store, merge_stores
from mxstats.activations.record import bytes_while_written, estimate, text_windows
from mxstats.activations.token_sample import RowSample
from mxstats.errors import StoreError
from tests.activations.test_stream import TEXT, assert_same, small_shards, stop_after

Usage = namedtuple("Usage", "total used free")

# Five norms of 32 entries in bfloat16: what a token takes.
TOKEN = 5 * 32 * 2


@pytest.fixture
def settings(tmp_path, tiny_folder, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    small_shards(monkeypatch)
    return {"model": tiny_folder, "text": text, "tokens": 84, "window": 8, "block_size": 8}


@pytest.fixture
def leave(monkeypatch):
    """Say how many bytes every disk has free."""

    def leave(free):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12 - free, free))

    return leave


def test_a_capture_that_does_not_fit_is_refused_before_the_first_pass(tmp_path, settings, leave):
    leave(84 * TOKEN - 1)
    read = []
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StoreError) as caught:
        capture_to_store(tmp_path / "s", progress=lambda *_: read.append(1), **settings)
    assert str(caught.value) == (
        f"{tmp_path}/s takes 2.69e-05 GB while it is written, and the disk of {tmp_path} has "
        "2.69e-05 GB free: read fewer tokens, keep the rows of fewer (keep_rows, --keep-rows on "
        "the command line), or write to another disk"
    )
    assert read == []
    assert sorted(tmp_path.iterdir()) == before
    leave(84 * TOKEN)
    capture_to_store(tmp_path / "s", **settings).verify()


def test_sizes_are_in_gigabytes(tmp_path, settings, leave, monkeypatch):
    leave(3_210_000_000)
    monkeypatch.setattr(
        "mxstats.activations.record.bytes_while_written", lambda *_, **__: 1_234_500_000_000
    )
    with pytest.raises(StoreError, match=r"takes 1,234 GB .* has 3.21 GB free"):
        capture_to_store(tmp_path / "s", **settings)


def test_what_an_interrupted_capture_holds_counts_as_free(tmp_path, settings, leave):
    with pytest.raises(KeyboardInterrupt):
        capture_to_store(tmp_path / "s", progress=stop_after(5), **settings)
    # Two shards of 16 tokens are on the disk already.
    leave((84 - 32) * TOKEN)
    with pytest.raises(StoreError, match="while it is written"):
        capture_to_store(tmp_path / "t", resume=True, **settings)
    capture_to_store(tmp_path / "s", resume=True, **settings).verify()


def test_fewer_rows_need_less(tmp_path, settings, leave):
    leave(0)
    store = capture_to_store(tmp_path / "s", keep_rows=0, **settings)
    assert store.manifest.tokens_read == 84


@pytest.mark.parametrize(
    ("tokens", "keep", "processes", "expected"),
    [
        (100, None, 1, 100),  # linked
        (100, 100, 1, 100),
        (100, None, 2, 200),  # sorted into new shards
        (100, 0, 1, 0),
        (100, 99, 1, 199),  # 99·(1 + ln(100/99)) = 99.995, and 99
    ],
)
def test_bytes_while_written(tokens, keep, processes, expected):
    found = bytes_while_written([6, 4], tokens, keep, processes=processes)
    assert found == expected * 20


def test_a_sample_is_written_as_often_as_its_records():
    """Every token that is among the ``keep`` best so far when it is read: counted, not computed."""
    keep, tokens = 200, 20_000
    rng = np.random.default_rng(0)
    best, records = np.sort(rng.random(keep)), keep
    for one in rng.random(tokens - keep):
        if one < best[-1]:
            best = np.sort(np.append(best[:-1], one))
            records += 1
    expected = (bytes_while_written([1], tokens, keep, dtype="float32") / 4) - keep
    # A sum of independent events of chance keep/t: its variance is below keep·ln(tokens/keep);
    # four standard deviations, which chance alone passes once in 15,000 seeds.
    assert abs(records - expected) < 4 * np.sqrt(keep * np.log(tokens / keep))

    sample, written = RowSample(keep, seed=1), 0
    for first in range(0, tokens, 100):
        sample.add(np.arange(first, first + 100), torch.zeros(100, 1, 1))
        if sample.pending >= 64:
            written += len(sample.drain()[0])
    # What a later token drove out before it was written has never been on the disk.
    assert written + sample.pending < expected + 4 * np.sqrt(keep * np.log(tokens / keep))


def test_the_estimate_is_the_size_of_the_rows_on_disk(tmp_path, tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=256, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model, folder = LlamaForCausalLM(config).eval(), tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i * i % 61}" for i in range(3000)))
    announced, events = [], []

    def announce(expected):
        announced.append(expected)
        events.append("estimate")

    store = capture_to_store(
        tmp_path / "s", model=folder, text=text, tokens=3000, window=100,
        announce=announce, progress=lambda done, _: events.append(done),
    )  # fmt: skip
    assert events[:2] == ["estimate", 0]
    size = sum(path.stat().st_size for path in store.path.rglob("*") if path.is_file())
    assert announced[0].bytes == 3000 * 5 * 256 * 2
    # The manifest and the tables of tokens and statistics come on top.
    assert announced[0].bytes < size < 1.05 * announced[0].bytes
    windows = text_windows(tokenizer, text.read_text(), max_tokens=3000, window=100)
    assert estimate(model, windows, keep_rows=50).bytes == 50 * 5 * 256 * 2
    assert announced[0].seconds > 0


def test_a_disk_that_fills_half_way(tmp_path, settings, monkeypatch):
    plain = capture_to_store(tmp_path / "plain", **settings)
    real = Path.write_bytes

    def full(path, data):
        if "000-00002" in path.name:
            real(path, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreError) as caught:
        capture_to_store(tmp_path / "s", **settings)
    partial = tmp_path / ".s.partial"
    assert str(caught.value) == (
        f"cannot write {tmp_path}/s: No space left on device; what was captured up to the last "
        f"complete shard is in {partial}: make room, then resume=True continues it (--resume on "
        "the command line)"
    )
    # Half a shard would be in the way of whoever makes room.
    assert len(list((partial / "shards").iterdir())) == 2
    monkeypatch.setattr(Path, "write_bytes", real)
    read = []
    store = capture_to_store(
        tmp_path / "s", resume=True, progress=lambda done, _: read.append(done), **settings
    )
    assert read[0] == 32
    assert_same(store, plain)


def test_a_capture_of_unknown_length_warns(tmp_path, tiny_llama, ids, leave):
    leave(100 * TOKEN - 1)
    with torch.no_grad(), capture(tiny_llama, out=tmp_path / "s", keep_rows=100, block_size=8):
        with pytest.warns(UserWarning, match=r"rows of keep_rows = 100 tokens take 3.2e-05 GB, an"):
            tiny_llama(ids)
        # Once is enough; and a warning out of mxstats that nobody awaits is an error here.
        tiny_llama(ids)
    leave(100 * TOKEN)
    with torch.no_grad(), capture(tiny_llama, out=tmp_path / "t", keep_rows=100, block_size=8):
        tiny_llama(ids)


def test_a_merged_store_that_does_not_fit(tmp_path, store, leave):
    leave(1000)
    with pytest.raises(StoreError, match=r"both takes .* has 1e-06 GB free"):
        merge_stores(store, store, tmp_path / "both")
    assert not (tmp_path / "both").exists()
