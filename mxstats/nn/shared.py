"""The modules that stand in a converted model, each with the parameter names of the one it is for.

A norm and the linears that read it stay where they were, so that the names of their parameters and
the code around them stay too, but compute as one operation (:mod:`mxstats.nn.group`): the norm runs
it, with the linears' weights, and what it returns carries the outputs; each linear takes out its
own and adds its bias.
"""

import torch
from torch import nn

from mxstats.nn.calibrated import BlockWeighted
from mxstats.nn.group import gain_of, norm_linear
from mxstats.nn.norm import mx_norm
from mxstats.nn.settings import Cast, Norm, label


class GroupOutput:
    """What a norm hands to the linears that read it: their outputs, in their order.

    No tensor, as the normalised x is none: it exists in registers and as codes. ``shape``,
    ``dtype`` and ``device`` are those of x, which the code between a norm and its linears reads.
    """

    __slots__ = ("device", "dtype", "outputs", "shape")

    def __init__(self, x: torch.Tensor, outputs: tuple[torch.Tensor, ...]) -> None:
        self.shape, self.dtype, self.device = x.shape, x.dtype, x.device
        self.outputs = outputs


class Projection(nn.Module):
    """One of the linears that share a norm: out = (its output of the norm's operation) + bias.

    Keeps ``weight`` [out_features, in_features] and ``bias`` of the linear that it is for. Not a
    ``torch.nn.Linear``: what looks for those would give it tensors, or its weight another form.

    Raises TypeError for an input that does not come from its norm.
    """

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, index: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.index = index
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)

    def forward(self, x: GroupOutput) -> torch.Tensor:
        """Return [..., out_features] of what the norm returned."""
        if not isinstance(x, GroupOutput):
            raise TypeError(
                f"a converted linear takes what its norm returns, got {type(x).__name__}"
            )
        out = x.outputs[self.index]
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def extra_repr(self) -> str:
        """Sizes and place."""
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, output {self.index} of its norm"


class Calibrated(BlockWeighted):
    """What norms share: γ as ``weight``, settings, and perhaps the weights of the blocks."""

    def __init__(
        self,
        gamma: nn.Parameter,
        norm: Norm,
        cast: Cast | None,
        block_weights: torch.Tensor | None,
    ) -> None:
        super().__init__()
        self.weight, self.norm, self.cast = gamma, norm, cast
        self.keep_block_weights(block_weights, gamma.device)

    def extra_repr(self) -> str:
        """Size, settings and constant."""
        size = f"{self.weight.shape[0]}, eps={self.norm.eps:g}, {label(self.cast)}"
        if self.norm.kind == "rmsnorm":
            return size
        constant = "block weights" if self.norm.c is None else f"c={self.norm.c:.6g}"
        return f"{size}, p={self.norm.p:g}, {constant}"


class SharedNorm(Calibrated):
    """A norm that runs the operation of itself and of the linears that read it.

    Holds γ as ``weight``, [D], and refers to the :class:`Projection` modules, which stay children
    of others; it reads their weights when it runs.
    """

    def __init__(
        self,
        gamma: nn.Parameter,
        readers: tuple[Projection, ...],
        norm: Norm,
        cast: Cast | None,
        block_weights: torch.Tensor | None = None,
    ) -> None:
        super().__init__(gamma, norm, cast, block_weights)
        # A tuple is no submodule: registered, the weights would have two names.
        self.readers = readers

    def forward(self, x: torch.Tensor) -> GroupOutput:
        """Return the outputs of all linears that read the norm of x [..., D]."""
        weights = [reader.weight for reader in self.readers]
        outputs = norm_linear(x, self.weight, weights, self.norm, self.cast, self.block_weights)
        return GroupOutput(x, outputs)


class SharedMXNorm(SharedNorm):
    """MXNorm with the linears that read it."""


class SharedRMSNorm(SharedNorm):
    """RMSNorm with the linears that read it, on the fused kernel of norm and cast."""


class FinalMXNorm(Calibrated):
    """MXNorm alone: out = dequantise(cast(ρ̃·x))·gain in the type of x, γ being its ``weight``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., D]."""
        y = mx_norm(x, self.norm, self.cast, self.block_weights)
        return (y * gain_of(self.weight, self.norm)).to(x.dtype)
