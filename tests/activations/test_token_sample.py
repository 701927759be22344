import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mxstats.activations.token_sample import RowSample, priorities, sampled


def splitmix64(state):
    """Steele, Lea and Flood (2014), in Python integers: the next state and output."""
    mask = 2**64 - 1
    state = (state + 0x9E3779B97F4A7C15) & mask
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return state, z ^ (z >> 31)


def test_priorities_are_those_of_splitmix64():
    state, expected = 0, []
    for _ in range(20):
        state, out = splitmix64(state)
        expected.append(out)
    # The first output of seed 0 is in the reference implementation's tests.
    assert expected[0] == 0xE220A8397B1DCDAF
    assert priorities(np.arange(20)).tolist() == expected
    assert priorities(np.arange(20), seed=1).tolist() != expected


def one_by_one(n, keep, seed):
    ranks = priorities(np.arange(n), seed).tolist()
    return sorted(sorted(range(n), key=ranks.__getitem__)[:keep])


@settings(max_examples=60)
@given(st.data())
def test_any_split_keeps_the_same_tokens(data):
    n, keep = data.draw(st.integers(1, 80)), data.draw(st.integers(0, 40))
    seed = data.draw(st.integers(0, 3))
    sample = RowSample(keep, seed)
    rows = torch.arange(n).repeat_interleave(6).reshape(n, 2, 3)
    start = 0
    while start < n:
        stop = start + data.draw(st.integers(1, n - start))
        sample.add(np.arange(start, stop), rows[start:stop])
        assert sample.pending <= keep + keep // 4
        start = stop
    tokens, kept = sample.kept()
    expected = one_by_one(n, keep, seed)
    assert tokens.tolist() == expected
    if expected:
        assert torch.equal(kept, rows[expected])


def test_rows_that_have_been_drained_still_count():
    sample, whole = RowSample(20), RowSample(20)
    rows = torch.arange(200).reshape(200, 1, 1)
    written = []
    for start in range(0, 200, 25):
        part = np.arange(start, start + 25)
        whole.add(part, rows[part])
        sample.add(part, rows[part])
        tokens, _ = sample.drain()
        written += tokens.tolist()
    kept = np.array(written)[sampled(np.array(written), 20)]
    assert kept.tolist() == whole.kept()[0].tolist()
    # Far fewer were written than went by.
    assert len(written) < 100


def test_every_token_is_as_likely():
    # 400 seeds, 10 of 40 tokens: each is kept 100 times on average, standard deviation
    # √(400·¼·¾) = 8.7; 5 of them on 40 tokens fails by chance once in 40,000 runs, and the seeds
    # are fixed.
    counts = sum(sampled(np.arange(40), 10, seed).astype(int) for seed in range(400))
    assert counts.sum() == 4000
    assert np.abs(counts - 100).max() < 5 * 8.7


@pytest.mark.parametrize("keep", [0, 3])
def test_what_is_kept_is_a_copy(keep):
    rows = torch.ones(5, 1, 2)
    sample = RowSample(keep)
    sample.add(np.arange(5), rows)
    rows.zero_()
    kept = sample.kept()[1]
    assert kept is None if keep == 0 else bool((kept == 1).all())
