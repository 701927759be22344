import json
from datetime import date

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mxstats.activations import ActivationStore, LayerInfo, store_bytes, write_store
from mxstats.activations.write import stored_rows
from mxstats.errors import StoreError


def test_round_trip(make_store, layers, about):
    store = make_store()
    again = ActivationStore(str(store.path))
    assert again.layers == [
        LayerInfo("model.layers.0.input_layernorm", "pre-attention", 0, 6, 10),
        LayerInfo("model.layers.0.self_attn.q_norm", "query", 0, 3, 20),
        LayerInfo("model.norm", "final", None, 6, 10),
    ]
    for layer in layers:
        rows = again.rows(layer.name)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, layer.rows)
    tokens = again.tokens()
    assert list(tokens.columns) == [
        "row",
        "token_id",
        "text",
        "position",
        "window",
        "token",
    ]
    assert tokens["token_id"].tolist() == about["token_ids"]
    assert tokens["text"].tolist() == about["token_texts"]
    assert tokens["position"].tolist() == [0, 1, 2, 3, 4] * 2
    again.verify()


def test_a_shard_is_a_range_of_rows_of_every_layer_that_has_them(make_store, layers):
    store = make_store()
    assert [(s.first_row, s.rows) for s in store.manifest.shards] == [
        (0, 4),
        (4, 4),
        (8, 4),
        (12, 4),
        (16, 4),
    ]
    np.testing.assert_array_equal(store.rows("model.norm", shards=[1]), layers[2].rows[4:8])
    np.testing.assert_array_equal(store.rows("model.norm", shards=[2, 3]), layers[2].rows[8:])
    assert store.rows("model.norm", shards=[4]).shape == (0, 6)


def test_manifest_says_what_was_captured(make_store):
    store = make_store(created=date(2026, 1, 2))
    record = json.loads((store.path / "manifest.json").read_text())
    assert record["format_version"] == 2
    assert record["model"] == store.manifest.model == "tiny"
    assert record["dtype"] == "bfloat16"
    assert record["tokens"] == 10
    assert record["rows"] == 20
    assert record["created"] == "2026-01-02"
    assert set(record["versions"]) == {"mxstats", "torch", "transformers", "python"}
    for shard in record["shards"]:
        assert (store.path / shard["file"]).stat().st_size == shard["bytes"]


def test_the_same_rows_give_the_same_bytes(make_store):
    first, second = make_store("first"), make_store("second")
    assert first.manifest == second.manifest
    for shard in first.manifest.shards:
        path = first.path / shard.file
        assert path.read_bytes() == (second.path / shard.file).read_bytes()


FLOATS = hnp.arrays(np.float32, (3, 4), elements=st.floats(-(2.0**126), 2.0**126, width=32))


@given(FLOATS)
def test_bfloat16_is_rounded_as_torch_does(rows):
    expected = torch.tensor(rows).to(torch.bfloat16)
    found = stored_rows("x", rows, "bfloat16").astype(np.float32)
    np.testing.assert_array_equal(found, expected.float().numpy())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_torch_rows_of_any_float_dtype(tmp_path, layers, about, kind, dtype):
    exact = layers[0].rows
    layers[0].rows = torch.tensor(exact, requires_grad=True).to(kind)
    store = write_store(tmp_path / "s", layers, dtype=dtype, **about)
    assert store.manifest.dtype == dtype
    np.testing.assert_array_equal(store.rows(layers[0].name), exact)


def test_float32_is_kept_exactly(tmp_path, layers, about):
    layers[0].rows = np.random.default_rng(1).normal(size=(10, 6)).astype(np.float32)
    store = write_store(tmp_path / "s", layers, dtype="float32", **about)
    np.testing.assert_array_equal(store.rows(layers[0].name), layers[0].rows)


def test_values_that_float16_could_not_hold_survive(tmp_path, layers, about):
    layers[0].rows[3, 2] = 104_061
    store = write_store(tmp_path / "s", layers, **about)
    # bfloat16 has 8 bits of mantissa, the implicit one included: steps of 512 at 2^16.
    assert abs(store.rows(layers[0].name)[3, 2] - 104_061) <= 256


def test_non_finite_values_stay_and_overflow_is_refused(tmp_path, layers, about):
    layers[0].rows[0, :3] = [np.inf, -np.inf, np.nan]
    store = write_store(tmp_path / "s", layers, **about)
    np.testing.assert_array_equal(store.rows(layers[0].name)[0, :3], layers[0].rows[0, :3])

    layers[0].rows[0, 0] = np.finfo(np.float32).max
    with pytest.raises(ValueError, match=r"input_layernorm has .* 3.40282e\+38, .* bfloat16"):
        write_store(tmp_path / "t", layers, **about)
    layers[0].rows = layers[0].rows.astype(np.float64)
    layers[0].rows[0, 0] = 1e39
    with pytest.raises(ValueError, match=r"the value 1e\+39, which overflows float32"):
        write_store(tmp_path / "t", layers, dtype="float32", **about)
    assert not (tmp_path / "t").exists()


def test_layers_are_found_by_name_or_close_names_are_listed(make_store):
    store = make_store()
    assert store.layer("model.norm").role == "final"
    with pytest.raises(StoreError, match=r"no layer 'model.nrm' among .*close to it: model.norm"):
        store.rows("model.nrm")
    with pytest.raises(StoreError, match=r"no layer '\?'.*first: model.layers.0.input_layernorm"):
        store.rows("?")
    with pytest.raises(StoreError, match=r"no shard 5 in .*, which has 5"):
        store.rows("model.norm", shards=[5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, r"must not be float16: real norm inputs reach 104,061"),
        ({"dtype": "int8"}, r"dtype must be one of bfloat16, float32, got 'int8'"),
        ({"rows_per_shard": 0}, r"rows_per_shard must be at least 1, got 0"),
        ({"window": 0}, r"window must be at least 1, got 0"),
        ({"token_texts": ["a"]}, r"token_texts has 1 entries for 10 token_ids"),
    ],
)
def test_bad_arguments(make_store, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make_store(**options)
    assert list(tmp_path.iterdir()) == []


def test_layers_that_cannot_be_told_apart(tmp_path, layers, about):
    with pytest.raises(ValueError, match="no layers"):
        write_store(tmp_path / "s", [], **about)
    with pytest.raises(ValueError, match=r"more than one layer called model\.norm"):
        write_store(tmp_path / "s", [*layers, layers[2]], **about)


def test_size_is_known_before(make_store, layers):
    store = make_store(rows_per_shard=100)
    estimate = store_bytes([6, 2 * 3, 6], 10)
    assert estimate == sum(layer.rows.size for layer in layers) * 2
    # What comes on top is the header: under 100 bytes a layer.
    assert 0 < store.manifest.shards[0].bytes - estimate < 300
    assert store_bytes([576] * 61, 64, dtype="float32") == 61 * 576 * 64 * 4
