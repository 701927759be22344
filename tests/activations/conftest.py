"""Models and stores that the tests of this package share."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mxstats.activations import write_store

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


@dataclass
class ArrayLayer:
    """A layer that no model had to make."""

    name: str
    role: str
    index: int | None
    rows: Any


@pytest.fixture
def tiny_llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**TINY)).eval()


@pytest.fixture
def tiny_gemma3():
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    return Gemma3ForCausalLM(Gemma3TextConfig(**TINY)).eval()


@pytest.fixture
def tiny_qwen3():
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**TINY)).eval()


@pytest.fixture
def ids():
    import torch

    return torch.tensor([[1, 5, 9, 2, 33, 60, 7]])


@pytest.fixture
def layers():
    """Ten rows of two layers, and twenty of a norm on two heads, all exact in bfloat16."""
    rng = np.random.default_rng(0)

    def rows(count, width):
        return rng.integers(-128, 128, (count, width)).astype(np.float32)

    return [
        ArrayLayer("model.layers.0.input_layernorm", "pre-attention", 0, rows(10, 6)),
        ArrayLayer("model.layers.0.self_attn.q_norm", "query", 0, rows(20, 3)),
        ArrayLayer("model.norm", "final", None, rows(10, 6)),
    ]


@pytest.fixture
def about():
    return {
        "model": "tiny",
        "revision": "1",
        "text": "made up",
        "token_ids": [1, 4, 4, 5, 6, 1, 8, 9, 2, 3],
        "token_texts": ["<s>", *"bcdé", "<s>", *"ghij"],
        "window": 5,
    }


@pytest.fixture
def make_store(tmp_path, layers, about):
    """Write a store of the layers: of five shards with the default of four rows a shard."""

    def make(name="store", **options):
        return write_store(tmp_path / name, layers, **{**about, "rows_per_shard": 4, **options})

    return make


@pytest.fixture
def store(make_store):
    return make_store()


@pytest.fixture
def tokenizer():
    """Words w0 to w60 are tokens 3 to 63; <s> is 1."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(61))]
    core = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture
def tiny_folder(tmp_path, tiny_llama, tokenizer):
    """The tiny Llama and its tokenizer, as transformers saves them."""
    folder = tmp_path / "tiny-llama"
    tiny_llama.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
