"""What part a norm plays in a decoder, read off its qualified name.

The names are those of the Llama, Mistral, Qwen, Gemma, OLMo, GLM and DeepSeek families in
transformers. One name means two things: ``post_attention_layernorm`` sits before the MLP in Llama,
Mistral and Qwen, but behind the attention (a sandwich norm) wherever the layer also has a norm of
its own before or behind the feed-forward part, as in Gemma 2 and 3 and OLMo 2.
"""

import re
from collections.abc import Set as AbstractSet
from typing import Literal, get_args

Role = Literal[
    "pre-attention",
    "post-attention",
    "pre-mlp",
    "post-mlp",
    "query",
    "key",
    "final",
    "other",
]
ROLES: tuple[str, ...] = get_args(Role)

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)(?:\.|$)")
_BY_LEAF: dict[str, Role] = {
    "input_layernorm": "pre-attention",
    "attention_norm": "pre-attention",
    "post_self_attn_layernorm": "post-attention",
    "pre_feedforward_layernorm": "pre-mlp",
    "ffn_norm": "pre-mlp",
    "post_feedforward_layernorm": "post-mlp",
    "post_mlp_layernorm": "post-mlp",
    "q_norm": "query",
    "q_layernorm": "query",
    "q_a_layernorm": "query",
    "k_norm": "key",
    "k_layernorm": "key",
    "kv_a_layernorm": "key",
}
_FINAL = frozenset({"norm", "final_norm", "final_layernorm"})
_FEED_FORWARD_NORMS = frozenset({"pre_feedforward_layernorm", "post_feedforward_layernorm"})


def layer_index(name: str) -> int | None:
    """Number of the decoder layer that a qualified module name lies in, or None outside of them."""
    found = _LAYER.search(name)
    return None if found is None else int(found.group(1))


def role_of(name: str, all_names: AbstractSet[str]) -> Role:
    """Role of the norm called ``name`` in a model whose modules are called ``all_names``.

    Parameters
    ----------
    name
        Qualified name, such as ``model.layers.3.post_attention_layernorm``.
    all_names
        Qualified names of every module of the model: a norm's neighbours decide what
        ``post_attention_layernorm`` means.

    Returns
    -------
    str
        One of :data:`ROLES`; ``other`` for a name that none of the known families uses.
    """
    parent, _, leaf = name.rpartition(".")
    if leaf == "post_attention_layernorm":
        beside = {f"{parent}.{norm}" if parent else norm for norm in _FEED_FORWARD_NORMS}
        return "post-attention" if beside & all_names else "pre-mlp"
    if leaf in _FINAL and layer_index(name) is None:
        return "final"
    return _BY_LEAF.get(leaf, "other")
