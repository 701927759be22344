"""Text that a model writes itself, to read where no text of its kind is at hand."""

from inspect import signature
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def write_windows(
    model: "nn.Module", *, bos: int, windows: int, length: int, seed: int = 0
) -> list[list[int]]:
    """Return windows of token ids that a causal language model writes after a BOS.

    Each token is drawn with the probability that the model gives it, so that the windows are what
    it takes text to be. All are written at once, a token a forward pass, from kept keys and values.

    Parameters
    ----------
    model
        Of transformers, on any device, in eval mode.
    bos
        Id of the token that every window begins with.
    windows
        How many; 0 gives none.
    length
        Tokens of each, the BOS included; at least 1.
    seed
        Of the draws, which are made on the CPU: other devices round otherwise, so that a text may
        part from the same seed's on another device.

    Raises
    ------
    ValueError
        ``windows`` below 0 or ``length`` below 1.
    """
    import torch
    from transformers import DynamicCache

    if windows < 0:
        raise ValueError(f"windows={windows}: must be at least 0")
    if length < 1:
        raise ValueError(f"length={length}: must be at least 1")
    if not windows:
        return []
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    written = torch.full((windows, 1), bos)
    # transformers 5.24 gave past_key_values another name.
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
    kept = {name: DynamicCache()}
    with torch.no_grad():
        for _ in range(length - 1):
            logits = model(input_ids=written[:, -1:].to(device), use_cache=True, **kept).logits
            chances = logits[:, -1].float().softmax(-1).cpu()
            written = torch.cat([written, torch.multinomial(chances, 1, generator=generator)], 1)
    return written.tolist()
