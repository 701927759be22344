"""Small random models of every family that is converted: hidden size 64, 2 layers, 128 tokens."""

import torch

HIDDEN, LAYERS, VOCABULARY = 64, 2, 128
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}


def tiny_llama(seed=0, **changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    return _made(LlamaForCausalLM, LlamaConfig, seed, changes)


def tiny_mistral(seed=0, **changes):
    from transformers import MistralConfig, MistralForCausalLM

    return _made(MistralForCausalLM, MistralConfig, seed, changes)


def tiny_qwen2(seed=0, **changes):
    """With biases in q, k and v."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _made(Qwen2ForCausalLM, Qwen2Config, seed, changes)


def tiny_qwen3(seed=0, **changes):
    """With norms of queries and keys."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _made(Qwen3ForCausalLM, Qwen3Config, seed, changes)


def tiny_gemma(seed=0, **changes):
    from transformers import GemmaConfig, GemmaForCausalLM

    return _made(GemmaForCausalLM, GemmaConfig, seed, changes)


def tiny_gemma2(seed=0, **changes):
    """With norms behind the attention and the MLP, and a tied head."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return _made(Gemma2ForCausalLM, Gemma2Config, seed, changes)


def tiny_gemma3(seed=0, **changes):
    """With norms of queries and keys, and behind the attention and the MLP."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return _made(Gemma3ForCausalLM, Gemma3TextConfig, seed, changes)


TINY_MODELS = {
    "llama": tiny_llama,
    "mistral": tiny_mistral,
    "qwen2": tiny_qwen2,
    "qwen3": tiny_qwen3,
    "gemma": tiny_gemma,
    "gemma2": tiny_gemma2,
    "gemma3": tiny_gemma3,
}


def tiny_ids(seed=0, batch=2, length=12):
    """Token ids, [batch, length], none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def _made(kind, config, seed, changes):
    """A model in float32 and eval mode, its norms' weights and its biases anything but their start.

    Norm weights of 1 (0 where the gain is 1 + γ) would hide a gain that is lost or applied twice.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config(**{**_COMMON, **changes})).eval().float()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter += 0.3 * torch.randn_like(parameter)
                elif name.endswith("bias"):
                    parameter += 0.1 * torch.randn_like(parameter)
    return model
