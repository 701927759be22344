"""Padding in a batch: statistics and rows are those of the sequences run one by one without it."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from mxstats.activations import ActivationStore, capture, merge_stores
from mxstats.activations.passes import read_arguments
from tests.activations.nets import llama_norm_inputs

# No two begin alike: rows that are equal but for rounding would have top entries in any order.
SEQUENCES = ([1, 5, 9, 2, 33, 60, 7], [3, 8, 4], [6, 40, 41, 42, 17])
LONGEST = 7
PAD = 63


def batch(side):
    """Token ids, attention mask and position ids, ``[3, 7]``, padded on one side."""
    ids = torch.full((3, LONGEST), PAD)
    mask = torch.zeros(3, LONGEST, dtype=torch.int64)
    positions = torch.zeros(3, LONGEST, dtype=torch.int64)
    for i, sequence in enumerate(SEQUENCES):
        n = len(sequence)
        at = slice(0, n) if side == "right" else slice(LONGEST - n, LONGEST)
        ids[i, at], mask[i, at] = torch.tensor(sequence), 1
        positions[i, at] = torch.arange(n)
    return ids, mask, positions


def one_by_one(model, **options):
    with torch.no_grad(), capture(model, block_size=8, **options) as seen:
        for sequence in SEQUENCES:
            model(torch.tensor([sequence]))
    return seen


def padded(model, side, **options):
    ids, mask, positions = batch(side)
    with torch.no_grad(), capture(model, block_size=8, **options) as seen:
        model(ids, attention_mask=mask, position_ids=positions if side == "left" else None)
    return seen


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_enters_neither_statistics_nor_rows(tiny_llama, side):
    tiny_llama.double()
    plain, seen = one_by_one(tiny_llama), padded(tiny_llama, side)
    assert (seen.tokens_read, seen.padding_tokens) == (15, 6)
    assert (plain.tokens_read, plain.padding_tokens) == (15, 0)
    for layer in plain:
        # Attention is causal, so the rows are the same numbers summed in another order: float64
        # leaves 1e-15 of them, and a float32 inside the model (its rotary embedding) 1e-7.
        torch.testing.assert_close(seen[layer.name].rows, layer.rows, rtol=1e-6, atol=1e-6)
        assert seen[layer.name].rows_seen == layer.rows_seen == 15
    pd.testing.assert_frame_equal(seen.tokens(), plain.tokens(), check_exact=True)
    # Sums that cancel have no relative error of their own: 1e-6 of a row's entries, near 1.
    pd.testing.assert_frame_equal(seen.table(), plain.table(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_are_those_of_a_forward_pass_written_by_hand(tiny_llama, side):
    seen = padded(tiny_llama.double(), side)
    for name in seen.names:
        by_hand = [llama_norm_inputs(tiny_llama, torch.tensor([one]))[name] for one in SEQUENCES]
        # The model's rotary embedding is float32: 1e-7 of entries near 1.
        torch.testing.assert_close(seen[name].rows, torch.cat(by_hand), rtol=1e-5, atol=1e-6)


def test_norms_on_heads(tiny_qwen3):
    tiny_qwen3.double()
    plain, seen = one_by_one(tiny_qwen3), padded(tiny_qwen3, "right")
    query = "model.layers.0.self_attn.q_norm"
    assert (seen[query].group, seen[query].rows_seen) == (4, 60)
    for layer in plain:
        torch.testing.assert_close(seen[layer.name].rows, layer.rows, rtol=1e-6, atol=1e-6)
    pd.testing.assert_frame_equal(seen.table(), plain.table(), rtol=1e-6, atol=1e-6)


def test_a_sample_is_of_tokens(tiny_llama):
    plain, seen = (
        one_by_one(tiny_llama, keep_rows=6, seed=3),
        padded(tiny_llama, "right", keep_rows=6, seed=3),
    )
    assert len(seen.tokens()) == 6
    pd.testing.assert_frame_equal(seen.tokens(), plain.tokens(), check_exact=True)
    assert (seen.tokens()["token_id"] != PAD).all()


def test_a_store_has_no_padding(tmp_path, tiny_llama):
    padded(tiny_llama, "right", out=tmp_path / "padded", dtype="float32")
    one_by_one(tiny_llama, out=tmp_path / "plain", dtype="float32")
    found, plain = ActivationStore(tmp_path / "padded"), ActivationStore(tmp_path / "plain")
    found.verify()
    assert found.manifest.tokens_read == found.manifest.tokens == 15
    pd.testing.assert_frame_equal(found.tokens(), plain.tokens(), check_exact=True)
    for layer in plain.layers:
        # float32 sums in another order: some 1e-7 of entries near 1.
        np.testing.assert_allclose(found.rows(layer.name), plain.rows(layer.name), 1e-4, 1e-5)
    merge_stores(found, plain, tmp_path / "both").verify()


def test_padding_is_counted_on_over_passes_and_through_a_resumption(tmp_path, tiny_llama):
    ids, mask, _ = batch("right")

    def run(passes, resume):
        with (
            torch.no_grad(),
            capture(tiny_llama, out=tmp_path / "s", block_size=8, resume=resume) as seen,
        ):
            for _ in range(passes):
                tiny_llama(ids, attention_mask=mask)
            seen.after_pass.__self__.checkpoint()
            if not resume:
                raise ZeroDivisionError
        return seen

    with pytest.raises(ZeroDivisionError):
        run(2, False)
    seen = run(1, True)
    assert (seen.tokens_read, seen.padding_tokens) == (45, 18)


def test_a_pass_of_nothing_but_padding(tiny_llama):
    ids, mask, _ = batch("right")
    with torch.no_grad(), capture(tiny_llama, block_size=8) as seen:
        tiny_llama(ids, attention_mask=torch.zeros_like(mask))
        tiny_llama(ids, attention_mask=mask)
    assert (seen.tokens_read, seen.padding_tokens) == (15, 27)
    pd.testing.assert_frame_equal(
        seen.table(), padded(tiny_llama, "right").table(), rtol=1e-6, atol=1e-6
    )


def test_a_model_compiled_inside_the_block(tiny_llama):
    ids, mask, _ = batch("right")
    plain = padded(tiny_llama, "right")
    with torch.no_grad(), capture(tiny_llama, block_size=8) as seen:
        torch.compile(tiny_llama, backend="eager")(ids, attention_mask=mask)
    # Compiled code is kept by the function's source, across models.
    torch.compiler.reset()
    assert (seen.tokens_read, seen.padding_tokens) == (15, 6)
    for layer in plain:
        torch.testing.assert_close(seen[layer.name].rows, layer.rows)


class Unpadding(nn.Module):
    """Removes the padding itself, as models with attention over ragged sequences do."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(4)

    def forward(self, input_ids, attention_mask=None):
        rows = input_ids[attention_mask.bool()].float()
        return self.norm(rows[:, None] * torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_a_model_that_removes_padding_itself():
    ids, mask, _ = batch("right")
    model = Unpadding()
    with torch.no_grad(), capture(model, block_size=2) as seen:
        model(ids, attention_mask=mask)
    assert seen["norm"].rows[:, 0].tolist() == [float(i) for one in SEQUENCES for i in one]
    assert len(seen.tokens()) == seen["norm"].rows_seen == 15


class Takes(nn.Module):
    def forward(self, input_ids, attention_mask=None, past_key_values=None, position_ids=None):
        return input_ids


class Cache:
    def get_seq_length(self):
        return 2


def read(ids, **options):
    return read_arguments(Takes(), (ids,), options, 0, 10)


def test_positions_count_what_is_no_padding():
    ids = torch.tensor([[5, 6, 7], [8, 9, 3]])
    left = read(ids, attention_mask=torch.tensor([[0, 1, 1], [1, 1, 1]]))
    assert left.positions.tolist() == [0, 1, 0, 1, 2]
    assert left.ids.tolist() == [6, 7, 8, 9, 3]
    assert (left.tokens, left.places) == (5, 6)
    # With two tokens in the cache, of which the first sequence has padded one.
    later = read(
        ids,
        attention_mask=torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool(),
        past_key_values=Cache(),
    )
    assert later.positions.tolist() == [1, 2, 3, 2, 3]
    assert later.ids.tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "mask",
    [
        None,
        torch.ones(2, 3, dtype=torch.int64),
        torch.zeros(2, 3),  # added to the scores
        torch.zeros(2, 1, 3, 3, dtype=torch.bool),  # which pairs attend
        torch.zeros(1, 3, dtype=torch.int64),
        {"full": torch.zeros(2, 3, dtype=torch.int64)},
    ],
)
def test_what_is_no_mask_of_padding(mask):
    found = read(torch.tensor([[5, 6, 7], [8, 9, 3]]), attention_mask=mask)
    assert (found.tokens, found.real) == (6, None)
    assert found.positions.tolist() == [0, 1, 2] * 2
