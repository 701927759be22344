"""A network small enough to follow by hand, and a Llama that is followed by hand."""

import torch
from torch import nn


class Net(nn.Module):
    """Two plain norms: the first gets its input by keyword, the second by position."""

    def __init__(self):
        super().__init__()
        self.first = nn.RMSNorm(4)
        self.second = nn.RMSNorm(4)
        self.embedding = nn.Embedding(3, 4)

    def forward(self, x):
        return self.second(self.first(x=x) + 1)


def llama_norm_inputs(model, ids):
    """The residual stream of a Llama, written out by hand in float64, from its weights alone."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    config = model.config
    heads, groups, dim = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    length = ids.shape[1]
    inverse = config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
    angles = torch.outer(torch.arange(length).double(), inverse)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weights[name]

    def rotate(x):
        return x * cos + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * sin

    def split(x, count):
        return x.reshape(length, count, dim).transpose(0, 1)

    x, seen = weights["model.embed_tokens.weight"][ids[0]], {}
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    for i in range(config.num_hidden_layers):
        prefix = f"model.layers.{i}."
        seen[prefix + "input_layernorm"] = x
        y = norm(x, prefix + "input_layernorm.weight")
        q, k, v = (y @ weights[f"{prefix}self_attn.{name}_proj.weight"].T for name in "qkv")
        q, k, v = rotate(split(q, heads)), rotate(split(k, groups)), split(v, groups)
        k, v = (part.repeat_interleave(heads // groups, 0) for part in (k, v))
        scores = (q @ k.transpose(1, 2) / dim**0.5).masked_fill(future, -torch.inf).softmax(-1)
        mixed = (scores @ v).transpose(0, 1).reshape(length, heads * dim)
        x = x + mixed @ weights[prefix + "self_attn.o_proj.weight"].T
        seen[prefix + "post_attention_layernorm"] = x
        y = norm(x, prefix + "post_attention_layernorm.weight")
        gate = nn.functional.silu(y @ weights[prefix + "mlp.gate_proj.weight"].T)
        up = y @ weights[prefix + "mlp.up_proj.weight"].T
        x = x + (gate * up) @ weights[prefix + "mlp.down_proj.weight"].T
    seen["model.norm"] = x
    return seen
