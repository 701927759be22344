import numpy as np
import pytest
import torch

from mxstats.activations import ActivationStore, TextError, capture_to_store
from mxstats.activations.record import run_windows, text_windows
from mxstats.errors import CaptureError, StoreError

TEXT = " ".join(f"w{i % 50}" for i in range(40))


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_a_store_from_a_folder_and_a_file(tmp_path, tiny_folder, tiny_llama, text_file):
    calls = []
    store = capture_to_store(
        tmp_path / "out",
        model=tiny_folder,
        text=text_file,
        tokens=20,
        window=8,
        dtype="float32",
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(0, 20), (8, 20), (16, 20), (20, 20)]
    tokens = store.tokens()
    # <s> is 1 and w0, w1, … are 3, 4, …: 7 words a window after its BOS.
    words = iter(range(3, 40))
    expected = [1 if i % 8 == 0 else next(words) for i in range(20)]
    assert tokens["token_id"].tolist() == expected
    assert tokens["text"].tolist()[:3] == ["<s>", "w0", "w1"]
    assert tokens["position"].tolist() == [i % 8 for i in range(20)]
    assert (store.manifest.window, store.manifest.text) == (8, str(text_file))
    assert store.manifest.model == tiny_folder.name
    assert len(store.layers) == 5

    embedding = tiny_llama.model.embed_tokens.weight.detach()
    rows = store.rows("model.layers.0.input_layernorm")
    np.testing.assert_array_equal(rows, embedding[expected])
    # Windows know nothing of each other: the last one alone gives the same rows.
    with torch.no_grad():
        hidden = tiny_llama(torch.tensor([expected[16:]]), output_hidden_states=True).hidden_states
    # Matrix products of the same shape on the same machine: equal but for threading.
    np.testing.assert_allclose(
        store.rows("model.layers.1.input_layernorm")[16:], hidden[1][0], rtol=1e-5, atol=1e-7
    )


def test_norms_on_heads_are_stored_whole(tmp_path, tiny_qwen3, ids):
    from mxstats.activations import write_store

    window = ids[0].tolist()
    store = write_store(
        tmp_path / "s",
        run_windows(tiny_qwen3, [window]),
        model="m",
        text="t",
        token_ids=window,
        rows_per_shard=5,
    )
    rows = {layer.name.rpartition(".")[2]: layer.rows for layer in store.layers}
    assert (rows["q_norm"], rows["k_norm"], rows["norm"]) == (28, 14, 7)
    store.verify()


def test_picked_modules_only(tmp_path, tiny_folder, text_file):
    options = {"model": tiny_folder, "text": text_file, "tokens": 4}
    store = capture_to_store(tmp_path / "out", modules="*.1.*norm", **options)
    assert [layer.index for layer in store.layers] == [1, 1]
    with pytest.raises(CaptureError, match="no module of LlamaForCausalLM is named like 'x'"):
        capture_to_store(tmp_path / "other", modules="x", **options)
    assert not (tmp_path / "other").exists()


def test_what_is_wrong_is_said_before_a_model_is_loaded(tmp_path, text_file, monkeypatch):
    def never(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("mxstats.activations.record.load_model", never)
    with pytest.raises(ValueError, match="window must be at least 2"):
        capture_to_store(tmp_path / "out", window=1)
    with pytest.raises(ValueError, match="tokens must be at least 1, got 0"):
        capture_to_store(tmp_path / "out", tokens=0)
    with pytest.raises(TextError, match="cannot read"):
        capture_to_store(tmp_path / "out", text=tmp_path / "gone")
    with pytest.raises(ValueError, match=r"text must have no control characters, got 'a\\nb'"):
        capture_to_store(tmp_path / "out", text="a\nb")
    with pytest.raises(ValueError, match=r"model must have no control characters, got 'a\\nb'"):
        capture_to_store(tmp_path / "out", model="a\nb")
    with pytest.raises(StoreError, match="exists already"):
        capture_to_store(text_file)


@pytest.mark.parametrize(
    ("max_tokens", "lengths"),
    [
        (1, [1]),
        (8, [8]),
        # A ninth id would be a BOS with nothing behind it.
        (9, [8]),
        (10, [8, 2]),
        (16, [8, 8]),
        (None, [8, 8, 8, 8, 8, 6]),
        (10_000, [8, 8, 8, 8, 8, 6]),
    ],
)
def test_windows_begin_with_bos_and_hold_no_more_than_asked(tokenizer, max_tokens, lengths):
    windows = text_windows(tokenizer, TEXT, max_tokens=max_tokens, window=8)
    assert [len(window) for window in windows] == lengths
    assert {window[0] for window in windows} == {1}
    body = [token for window in windows for token in window[1:]]
    assert body == [3 + i for i in range(40)][: len(body)]


def test_the_store_is_what_was_asked_for(tmp_path, tiny_folder, text_file):
    made = capture_to_store(tmp_path / "a", model=tiny_folder, text=text_file, tokens=10)
    capture_to_store(tmp_path / "a", model=tiny_folder, text=text_file, tokens=5, overwrite=True)
    assert made.manifest.tokens == 10
    assert ActivationStore(tmp_path / "a").manifest.tokens == 5
