"""The arguments that the kernels have in common, checked before any launch."""

import math

import torch

from mxstats.kernels.traced import FormatNumbers

MAX_HIDDEN_SIZE = 65_536
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = ("rows", "blocked")

# The normal numbers of float32.
_SMALLEST, LARGEST = 2.0**-126, torch.finfo(torch.float32).max


def as_rows(x: torch.Tensor, name: str = "x") -> torch.Tensor:
    """Return x, [..., D], as a view [rows, D] whose last stride is 1; nothing is copied.

    Raises
    ------
    TypeError
        Not a torch tensor of bfloat16, float16 or float32.
    ValueError
        No axis; D = 0 or above 65,536; strides of which no such view can be made.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
    if x.dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {x.dtype}; bfloat16, float16 or float32 is needed")
    if x.ndim == 0:
        raise ValueError(f"{name} is a single number; at least one axis is needed, [..., D]")
    hidden_size = x.shape[-1]
    if not 1 <= hidden_size <= MAX_HIDDEN_SIZE:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}: its last axis must be from 1 to {MAX_HIDDEN_SIZE}"
        )
    if hidden_size > 1 and x.stride(-1) != 1 and x.numel() > 0:
        raise ValueError(
            f"{name} has stride {x.stride(-1)} along its last axis; 1 is needed: call .contiguous()"
        )
    if x.ndim == 2:
        return x
    rows = math.prod(x.shape[:-1])
    if x.is_contiguous():
        return x.view(rows, hidden_size)
    try:
        return x.view(rows, hidden_size)
    except RuntimeError:
        raise ValueError(
            f"{name} has strides {x.stride()}, which no rows [{rows}, {hidden_size}] can share; "
            f"call .contiguous()"
        ) from None


def same_rows(other: torch.Tensor, name: str, x: torch.Tensor) -> torch.Tensor:
    """Return ``other``, which must have the shape and device of x, as a view [rows, D].

    Raises as :func:`as_rows`, and ValueError for another shape or device.
    """
    rows = as_rows(other, name)
    if other.shape != x.shape:
        raise ValueError(f"{name} has shape {tuple(other.shape)}; that of x is {tuple(x.shape)}")
    return on_device(rows, name, x)


def of_rows(value: torch.Tensor, name: str, x: torch.Tensor) -> torch.Tensor:
    """Return a float32 tensor of one value for each row of ``x``, [...], as [rows].

    Raises
    ------
    TypeError
        No tensor, or of another dtype.
    ValueError
        Another shape, or another device.
    """
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a float32 tensor, got {kind}")
    if value.shape != x.shape[:-1]:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; {tuple(x.shape[:-1])} is needed")
    # One row alone may be a view with any stride, which the kernels do not look at.
    return on_device(value, name, x).reshape(-1).contiguous()


def vector(value: torch.Tensor, name: str, length: int, x: torch.Tensor) -> torch.Tensor:
    """Return ``value``, which must be a vector [length] on the device of x, else raise as for rows.

    It may have any stride.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
    if value.dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {value.dtype}; bfloat16, float16 or float32 is needed")
    if value.shape != (length,):
        raise ValueError(f"{name} has shape {tuple(value.shape)}; ({length},) is needed")
    return on_device(value, name, x)


def on_device(value: torch.Tensor, name: str, x: torch.Tensor) -> torch.Tensor:
    """Return ``value``; ValueError unless it is where x is."""
    if value.device != x.device:
        raise ValueError(f"{name} is on {value.device}; x is on {x.device}")
    return value


def check_number(value: float, name: str, least: float = _SMALLEST) -> float:
    """Return a number as a float; ValueError unless it is from ``least`` to float32's largest."""
    number = float(value)
    if not least <= number <= LARGEST:
        raise ValueError(f"{name}={value}: must be a finite float32 above 0, at least {least:.8g}")
    return number


def given_tensor_scale(
    value: float | torch.Tensor, numbers: FormatNumbers, x: torch.Tensor
) -> torch.Tensor:
    """Return a tensor scale g that was given as a float32 scalar on the device of x.

    A tensor is taken as it is: reading its value would wait for the GPU.

    Raises
    ------
    ValueError
        A format without one; a number that is not finite in float32 or too small; a tensor that
        is not one float32 on the device of x.
    """
    if not numbers.has_tensor_scale:
        raise ValueError(f"tensor_scale={value}: the format has none")
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.dtype != torch.float32:
            raise ValueError(
                f"tensor_scale has shape {tuple(value.shape)} and dtype {value.dtype}; one float32 "
                f"is needed"
            )
        return on_device(value.reshape(()), "tensor_scale", x)
    least = numbers.least_tensor_scale
    if not least <= value <= torch.finfo(torch.float32).max:
        raise ValueError(f"tensor_scale={value}: must be a finite float32, at least {least:g}")
    return torch.full((), value, dtype=torch.float32, device=x.device)


def is_blocked(scale_layout: str) -> bool:
    """Whether the layout is the 128×4 one; ValueError for an unknown name."""
    if scale_layout not in LAYOUTS:
        raise ValueError(
            f"scale_layout={scale_layout!r} is unknown; known are {', '.join(LAYOUTS)}"
        )
    return scale_layout == "blocked"


def scales_shape(rows: int, n_blocks: int, blocked: bool) -> tuple[int, ...]:
    """Shape of the scales: [rows, K], or flat with the padding of the 128×4 layout."""
    if blocked:
        return (-(-rows // 128) * -(-n_blocks // 4) * 512,)
    return (rows, n_blocks)


def row_chunks(n_blocks: int, blocked: bool = False, most: int = 16) -> tuple[int, int]:
    """Return (count, blocks): equal chunks, a power of two of blocks each, that cover a row.

    A tile's axes are powers of two. Masking a row of 5120 up to 8192 wastes registers and lanes;
    five chunks of 1024 waste none. Of the covers with at most ``most`` chunks the one with the
    least excess, and of those the one with the fewest chunks. For the blocked layout a chunk has at
    least 4 blocks, so that the chunks reach its padding too.
    """
    covers = []
    blocks = 4 if blocked else 1
    while True:
        count = -(-n_blocks // blocks)
        if count <= most:
            covers.append((count * blocks, count, blocks))
        if count <= 1:
            return min(covers)[1:]
        blocks *= 2
