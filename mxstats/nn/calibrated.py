"""Weights of the blocks in a module: configuration that lives on the module's device."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn


class BlockWeighted(nn.Module):
    """A module whose norm may have weights of its blocks, ``block_weights``, float32 [K] or None.

    They are no part of the state dict, as the constant c is none: calibration is configuration.
    So nothing that is done to the module's storage may change them. A copy stays on the CPU, from
    which they are made again whenever the module is moved, cast to another dtype, or given memory
    by ``to_empty`` after it was made on the meta device.
    """

    block_weights: torch.Tensor | None

    def keep_block_weights(
        self, weights: torch.Tensor | None, device: torch.device | str | None
    ) -> None:
        """Register a copy of the weights on a device; for the constructors."""
        copied = None if weights is None else weights.detach().float().cpu().clone()
        self._calibrated = copied
        moved = None if copied is None else copied.to(device or torch.get_default_device())
        self.register_buffer("block_weights", moved, persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        moved = self.block_weights
        if moved is not None and self._calibrated is not None:
            self.block_weights = self._calibrated.to(moved.device)
        return self
