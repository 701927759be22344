"""What a capture keeps: which rows, of which modules, in which order."""

import numpy as np
import pytest
import torch
from torch import nn

from mxstats.activations import capture
from tests.activations.nets import Net, llama_norm_inputs


def test_rows_are_the_residual_stream_written_out_by_hand(tiny_llama, ids):
    with torch.no_grad(), capture(tiny_llama) as seen:
        tiny_llama(ids)
    expected = llama_norm_inputs(tiny_llama, ids)
    assert seen.names == list(expected)
    for layer in seen:
        assert layer.rows.dtype == torch.float32
        assert layer.rows_seen == 7
        # float32 carries 6e-8 a step through some twenty sums of 32 to 48 terms; the stream of
        # this model is about 0.02 in size.
        np.testing.assert_allclose(layer.rows, expected[layer.name], rtol=1e-5, atol=1e-7)


def test_rows_equal_the_hidden_states_that_the_model_reports(tiny_gemma3, ids):
    with torch.no_grad(), capture(tiny_gemma3, "*.input_layernorm") as seen:
        reported = tiny_gemma3(ids, output_hidden_states=True).hidden_states
    for layer, hidden in zip(seen, reported, strict=False):
        assert torch.equal(layer.rows, hidden[0])


def test_norms_on_heads_have_one_row_a_token_and_head(tiny_qwen3, ids):
    with torch.no_grad(), capture(tiny_qwen3) as seen:
        tiny_qwen3(ids)
    assert seen["model.layers.0.self_attn.q_norm"].rows.shape == (7 * 4, 8)
    assert seen["model.layers.0.self_attn.k_norm"].rows.shape == (7 * 2, 8)
    projection = tiny_qwen3.model.layers[0].self_attn.q_proj
    normed = tiny_qwen3.model.layers[0].input_layernorm(seen["model.layers.0.input_layernorm"].rows)
    # Rows of one token are consecutive: [tokens, heads * 8] reshaped, nothing transposed. The
    # product is of another shape here, so its sums may be ordered otherwise.
    torch.testing.assert_close(
        seen["model.layers.0.self_attn.q_norm"].rows,
        projection(normed).reshape(-1, 8).detach(),
        rtol=1e-5,
        atol=1e-7,
    )


def test_keyword_and_positional_inputs():
    net, x = Net(), torch.randn(2, 3, 4)
    with capture(net) as seen:
        net(x)
    flat = x.reshape(6, 4)
    rms = (flat.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()
    assert torch.equal(seen["first"].rows, flat)
    # One division and one root in float32, against the fused norm.
    torch.testing.assert_close(seen["second"].rows, flat / rms + 1, rtol=1e-6, atol=1e-6)


def test_batches_are_flattened_and_dtype_is_kept():
    net, x = Net().to(torch.bfloat16), torch.randn(2, 3, 4, dtype=torch.bfloat16)
    with capture(net) as seen:
        net(x)
        net(x + 1)
    assert seen["first"].rows.dtype == torch.bfloat16
    assert torch.equal(seen["first"].rows, torch.cat([x.reshape(6, 4), (x + 1).reshape(6, 4)]))
    assert seen["first"].calls == 2


def test_all_rows_are_kept_in_order_where_there_is_room():
    net, x = Net(), torch.randn(5, 4)
    with capture(net, keep_rows=15) as seen:
        for _ in range(3):
            net(x)
    assert seen["first"].rows_seen == 15
    assert torch.equal(seen["first"].rows, torch.cat([x, x, x]))


@pytest.mark.parametrize(
    ("modules", "picked"),
    [
        (None, ["first", "second"]),
        (nn.RMSNorm, ["first", "second"]),
        ("sec*", ["second"]),
        (lambda name, module: isinstance(module, nn.RMSNorm) and name == "first", ["first"]),
    ],
)
def test_what_modules_picks(modules, picked):
    net = Net()
    with capture(net, modules) as seen:
        net(torch.randn(5, 4))
    assert seen.names == picked
