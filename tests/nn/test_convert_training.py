"""A converted model trains: gradients against float64, checkpointing, compilation, the KV cache."""

import copy
import math

import pytest
import torch
from torch import nn

from mxstats.nn import convert
from mxstats.theory import constant
from tests.nn.tiny_models import HIDDEN, TINY_MODELS, VOCABULARY, tiny_ids, tiny_llama


class PlainMXNorm(nn.Module):
    """γ·x/√(r̂² + ε), r̂ = M_p(block maxima)/c, by torch's own operations and derivatives."""

    def __init__(self, norm, p, c):
        super().__init__()
        self.weight, self.eps, self.p, self.c = norm.weight, norm.variance_epsilon, p, c

    def forward(self, x):
        absmax = x.abs().unflatten(-1, (-1, 32)).amax(-1)
        r = absmax.pow(self.p).mean(-1, keepdim=True).pow(1 / self.p) / self.c
        return self.weight * (x / torch.sqrt(r.square() + self.eps))


class PlainRMSNorm(PlainMXNorm):
    """That of transformers takes its input through float32."""

    def forward(self, x):
        return self.weight * x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps)


def gradients(model, embeddings):
    x = embeddings.clone().requires_grad_()
    out = model(inputs_embeds=x).logits
    generator = torch.Generator().manual_seed(3)
    direction = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    (out * direction.to(out.dtype)).sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"x": x.grad, **{name: each for name, each in found.items() if each is not None}}


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("final_norm", [False, True])
def test_gradients_without_rounding_are_those_of_the_plain_formula(p, final_norm):
    # With SDPA: the eager attention takes its softmax in float32 whatever comes.
    model = tiny_llama(attn_implementation="sdpa")
    reference = copy.deepcopy(model).double()
    c = float(constant("gaussian", p=p, block_size=32))
    for layer in reference.model.layers:
        layer.input_layernorm = PlainMXNorm(layer.input_layernorm, p, c)
        layer.post_attention_layernorm = PlainMXNorm(layer.post_attention_layernorm, p, c)
    last = PlainMXNorm if final_norm else PlainRMSNorm
    reference.model.norm = last(reference.model.norm, p, c)
    converted, _ = convert(model, p=p, fmt=None, final_norm=final_norm)
    embeddings = torch.randn(2, 12, HIDDEN, generator=torch.Generator().manual_seed(5))
    found, wanted = gradients(converted, embeddings), gradients(reference, embeddings.double())
    # γ (2 norms a layer and the last), 7 weights a layer, the head, x; the embedding has none.
    assert found.keys() == wanted.keys()
    assert len(found) == 2 * (2 + 7) + 3
    for name, gradient in wanted.items():
        error = (found[name].double() - gradient).abs().max() / gradient.abs().max()
        # Sums of up to 128 float32 products over two layers: about 1e-6.
        assert error < 1e-5, (name, float(error))


def loss_and_gradients(model, ids):
    model.zero_grad(set_to_none=True)
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return loss.detach(), found


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_checkpointing_gives_the_same_gradients(family):
    converted, _ = convert(TINY_MODELS[family](), final_norm=True, head=True)
    converted.train()
    ids = tiny_ids()
    loss, wanted = loss_and_gradients(converted, ids)
    converted.gradient_checkpointing_enable()
    again, found = loss_and_gradients(converted, ids)
    # The same operations on the same numbers once more.
    assert torch.equal(loss, again)
    for name, gradient in wanted.items():
        assert torch.equal(found[name], gradient), name
        assert gradient.isfinite().all()


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_compiles_as_one_graph(family):
    model = TINY_MODELS[family](num_hidden_layers=1)
    converted, _ = convert(model, final_norm=True, head=True)
    torch.compiler.reset()
    # Traced as for any compiler, run by torch's own operators: the same bits.
    compiled = torch.compile(converted, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        found = compiled(tiny_ids(), use_cache=False).logits
        assert torch.equal(found, converted(tiny_ids()).logits)


def test_compiled_it_trains_with_the_same_gradients():
    converted, _ = convert(tiny_llama(), final_norm=True, head=True)
    ids = tiny_ids()
    torch.compiler.reset()
    compiled = torch.compile(converted, fullgraph=True, backend="aot_eager")
    loss, wanted = loss_and_gradients(converted, ids)
    converted.zero_grad(set_to_none=True)
    again = compiled(ids, labels=ids, use_cache=False).loss
    again.backward()
    torch.testing.assert_close(again, loss)
    for name, parameter in converted.named_parameters():
        error = (parameter.grad - wanted[name]).norm() / wanted[name].norm()
        # A sum taken in another order may move a gradient over a rounding step of E4M3.
        assert error < 1e-3, name


def test_compiled_by_inductor():
    converted, _ = convert(
        tiny_llama(), fmt=None, constants={"model.layers.1.input_layernorm": [0.17, 0.19]}
    )
    ids = tiny_ids()
    torch.compiler.reset()
    compiled = torch.compile(converted, fullgraph=True)
    with torch.no_grad():
        found, wanted = compiled(ids, use_cache=False).logits, converted(ids).logits
    # Nothing is cast: float32 operations in another order.
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_generates_the_same_tokens_with_and_without_the_cache(family):
    converted, _ = convert(TINY_MODELS[family](), final_norm=True, head=True)
    ids = tiny_ids(length=6)
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    found = converted.generate(ids, use_cache=True, **options)
    assert torch.equal(found, converted.generate(ids, use_cache=False, **options))
    assert found.shape[1] > ids.shape[1]


def test_hidden_states_and_attentions_are_given_out():
    model = tiny_llama()
    wanted = model(tiny_ids(), output_hidden_states=True, output_attentions=True)
    converted, _ = convert(model, norm="rmsnorm", fmt=None)
    found = converted(tiny_ids(), output_hidden_states=True, output_attentions=True)
    assert len(found.hidden_states) == len(wanted.hidden_states) == 3
    for of_found, of_wanted in zip(found.attentions, wanted.attentions, strict=True):
        # As for logits: float32 operations in another order.
        torch.testing.assert_close(of_found, of_wanted, rtol=1e-5, atol=2e-6)


def test_autocast():
    converted, _ = convert(tiny_llama(), final_norm=True, head=True)
    ids = tiny_ids()
    with torch.no_grad():
        wanted = converted(ids).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = converted(ids).logits
    assert found.dtype == torch.bfloat16
    # bfloat16 rounds by 2⁻⁹, which E4M3 may turn into one of its steps, 2⁻⁴, here and there.
    assert (found.float() - wanted).norm() / wanted.norm() < 0.05


def test_a_second_derivative_is_refused():
    converted, _ = convert(tiny_llama(), fmt=None)
    x = torch.randn(1, 4, HIDDEN, generator=torch.Generator().manual_seed(0), requires_grad=True)
    total = converted(inputs_embeds=x).logits.sum()
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(total, x, create_graph=True)


def test_loss_falls():
    converted, _ = convert(tiny_llama(), final_norm=True, head=True)
    converted.train()
    optimizer = torch.optim.AdamW(converted.parameters(), lr=1e-2)
    losses = []
    for _ in range(6):
        loss, _ = loss_and_gradients(converted, tiny_ids())
        optimizer.step()
        losses.append(float(loss))
    # One batch learnt by heart, from about ln 128 = 4.85.
    assert losses[0] == pytest.approx(math.log(VOCABULARY), rel=0.1)
    assert losses[-1] < 0.75 * losses[0]
