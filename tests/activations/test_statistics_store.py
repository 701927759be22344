"""Statistics on disk: the table, its file and its faults, and stores that merge."""

import numpy as np
import pandas as pd
import pytest
import torch

from mxstats.activations import ActivationStore, capture, merge_stores, sample_store
from mxstats.activations.statistics import empty, merge, tensors_of, update
from mxstats.activations.statistics_table import from_table, to_table
from mxstats.errors import StoreError

NORM = "model.norm"


def captured_store(path, model, batches, **options):
    with torch.no_grad(), capture(model, out=path, block_size=8, **options):
        for batch in batches:
            model(batch)
    return ActivationStore(path)


@pytest.fixture
def batches():
    torch.manual_seed(3)
    return [torch.randint(0, 64, (2, 9)) for _ in range(3)]


@pytest.fixture
def whole(tmp_path, tiny_qwen3, batches):
    return captured_store(tmp_path / "whole", tiny_qwen3, batches)


def test_a_table_gives_the_state_back():
    torch.manual_seed(0)
    rows = torch.randn(40, 20) * 1e20
    rows[3] = 0
    state = update(empty(20, block_size=8), rows, torch.arange(40) % 11, torch.arange(40) + 2**40)
    again = from_table(to_table({"a": state, "b": empty(20, block_size=8)}), "a")
    for name, tensor in tensors_of(again).items():
        assert torch.equal(tensor, tensors_of(state)[name]), name
        assert tensor.dtype == tensors_of(state)[name].dtype
    nothing = from_table(to_table({"b": empty(20, block_size=8)}), "b")
    for name, tensor in tensors_of(nothing).items():
        assert torch.equal(tensor, tensors_of(empty(20, block_size=8))[name]), name


def test_what_the_table_derives(whole):
    table = whole.statistics([NORM])
    assert set(table["layer"]) == {NORM}
    rows = whole.rows(NORM).astype(np.float64)
    layer = table[table["kind"] == "layer"].set_index("quantity")["value"]
    # The store is bfloat16 and the statistics are of the float32 rows: half a step is 2^-9.
    assert layer["rms"] == pytest.approx(np.sqrt((rows**2).mean()), rel=2**-8)
    assert layer["absmax"] == pytest.approx(np.abs(rows).max(), rel=2**-8)
    expected = (rows**4).mean() / (rows**2).mean() ** 2
    assert layer["kurtosis"] == pytest.approx(expected, rel=4 * 2**-8)
    blocks = table[(table["kind"] == "block") & (table["quantity"] == "rms")]["value"]
    expected = np.sqrt((rows.reshape(-1, 4, 8) ** 2).mean((0, 2)))
    np.testing.assert_allclose(blocks, expected, rtol=2**-8)


def test_a_store_without_statistics_says_so():
    with pytest.raises(StoreError, match="has no statistics; capture it again"):
        sample_store().statistics()
    assert sample_store().manifest.tokens_read == 64
    assert sample_store().tokens()["window"].tolist() == [0] * 64


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "statistics.parquet of .* it is truncated"),
        (lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:], "parquet of .* is altered"),
        (None, "statistics.parquet of .* is missing"),
    ],
)
def test_damaged_statistics_are_named_and_the_rows_stay_readable(whole, damage, message):
    path = whole.path / "statistics.parquet"
    data = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(data))
    for read in (whole.statistics, whole.verify):
        with pytest.raises(StoreError, match=message):
            read()
    assert len(whole.rows(NORM)) == 54


def test_an_unknown_layer(whole):
    with pytest.raises(StoreError, match=r"no layer 'model\.nrm'.*close to it: model\.norm"):
        whole.statistics(["model.nrm"])
    with pytest.raises(StoreError, match="the statistics have no layer 'x'"):
        from_table(whole.statistics(), "x")


def test_two_stores_merge_to_the_store_of_both(tmp_path, tiny_qwen3, batches, whole):
    parts = [
        captured_store(tmp_path / "a", tiny_qwen3, batches[:1]),
        captured_store(tmp_path / "b", tiny_qwen3, batches[1:]),
    ]
    both = merge_stores(*parts, tmp_path / "both")
    both.verify()
    assert both.layers == whole.layers
    for layer in whole.layers:
        np.testing.assert_array_equal(both.rows(layer.name), whole.rows(layer.name))
    pd.testing.assert_frame_equal(both.tokens(), whole.tokens())
    # Sums in another order, in float64.
    pd.testing.assert_frame_equal(both.statistics(), whole.statistics(), rtol=1e-9, atol=1e-9)
    assert both.manifest.tokens_read == 54


def test_stores_of_version_1_merge(tmp_path):
    sample = sample_store()
    both = merge_stores(sample, sample, tmp_path / "both")
    both.verify()
    rows = sample.rows(NORM)
    np.testing.assert_array_equal(both.rows(NORM), np.concatenate([rows, rows]))
    assert both.manifest.statistics is None
    assert both.tokens()["window"].tolist() == [0] * 64 + [1] * 64


def test_stores_that_do_not_merge(tmp_path, tiny_qwen3, tiny_llama, batches, whole):
    other = captured_store(tmp_path / "o", tiny_llama, batches)
    with pytest.raises(StoreError, match=r"has model 'Qwen3.*' and .* has 'Llama"):
        merge_stores(whole, other, tmp_path / "x")
    wide = captured_store(tmp_path / "w", tiny_qwen3, batches, dtype="float32")
    with pytest.raises(StoreError, match=r"has dtype 'bfloat16' and .* has 'float32'"):
        merge_stores(whole, wide, tmp_path / "x")
    bare = captured_store(tmp_path / "n", tiny_qwen3, batches, statistics=False)
    with pytest.raises(StoreError, match=r"/n has no statistics and the other store has them"):
        merge_stores(whole, bare, tmp_path / "x")
    with torch.no_grad(), capture(tiny_qwen3, NORM, out=tmp_path / "few"):
        tiny_qwen3(batches[0])
    with pytest.raises(StoreError, match=r"few has no layer model\.layers\.0\."):
        merge_stores(whole, tmp_path / "few", tmp_path / "x")
    with pytest.raises(StoreError, match="exists already"):
        merge_stores(whole, whole, whole.path)
    assert not (tmp_path / "x").exists()


def test_merging_states_is_what_merging_stores_does(whole):
    state = whole.layer_statistics(NORM)
    assert int(merge(state, state).rows) == 2 * int(state.rows) == 108
