import subprocess
import sys

import numpy as np
import pytest

from mxstats.activations import make_sample, sample_store
from mxstats.activations.record import run_windows, text_windows
from mxstats.activations.text import read_text

WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "gguf", "accelerate"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
from mxstats.activations import read_text, sample_store

store = sample_store()
store.verify()
print(abs(store.rows("model.layers.12.input_layernorm")[0]).max() > 20_000)
print(len(store.tokens()), len(store.layers), len(read_text()))
"""

CHEAP = """
import sys
import mxstats.activations
print(sorted({"torch", "transformers", "pandas", "pyarrow", "scipy"} & set(sys.modules)))
"""


def run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_reading_needs_no_torch():
    done = run(WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "64", "61", "35149"]


def test_importing_loads_nothing_heavy():
    assert run(CHEAP).stdout.strip() == "[]"


def test_what_is_bundled():
    store = sample_store()
    assert store.manifest.model == "SmolLM2-135M-Instruct"
    assert (store.manifest.text, store.manifest.dtype) == ("gpl-3", "bfloat16")
    assert len(store.layers) == 61
    assert {(layer.hidden_size, layer.rows) for layer in store.layers} == {(576, 64)}
    size = sum(path.stat().st_size for path in store.path.rglob("*") if path.is_file())
    assert size < 6e6
    ids, texts = (store.tokens()[name].tolist() for name in ("token_id", "text"))
    assert ids[0] == 1
    assert 1 not in ids[1:]
    assert read_text().startswith("".join(texts[1:]))


def test_the_first_token_is_massive():
    first = np.abs(sample_store().rows("model.layers.12.input_layernorm")).max(axis=1)
    assert first[0] > 20_000
    assert first[1:].max() < 2_000


@pytest.mark.model
def test_the_sample_is_a_fresh_capture(smollm2):
    model, tokenizer = smollm2
    windows = text_windows(tokenizer, read_text(), max_tokens=64)
    store = sample_store()
    fresh = run_windows(model, windows)
    assert fresh.names == [layer.name for layer in store.layers]
    assert windows[0] == store.tokens()["token_id"].tolist()
    for layer in fresh:
        rows = layer.rows.numpy()
        # Half a step of bfloat16 is 2^-9 of a value's power of two, so 2^-8 of the value at most.
        # Another CPU orders the float32 sums otherwise, which over thirty layers costs about 1e-6
        # of the largest entry in the row; ten times that is allowed.
        bound = 2.0**-8 * np.abs(rows) + 1e-5 * np.abs(rows).max(axis=1, keepdims=True)
        assert (np.abs(store.rows(layer.name) - rows) <= bound).all(), layer.name


@pytest.mark.model
def test_making_it_twice_gives_the_same_bytes(smollm2, tmp_path, monkeypatch):
    monkeypatch.setattr("mxstats.activations.record.load_model", lambda *_, **__: smollm2)
    first, second = make_sample(tmp_path / "a"), make_sample(tmp_path / "b")
    assert first.manifest == second.manifest
    for shard in first.manifest.shards:
        assert (first.path / shard.file).read_bytes() == (second.path / shard.file).read_bytes()
