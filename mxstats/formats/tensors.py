"""NumPy arrays and torch tensors of the float dtypes: in as NumPy, out as the kind that came."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def to_numpy(x: Any) -> NDArray[Any]:
    """Return ``x`` as a NumPy array (bfloat16 as ml_dtypes' type); uint8 codes pass too.

    Raises TypeError for anything but a float16, bfloat16, float32, float64 or uint8 array.
    """
    check_array(x, "x")
    # Asked of the tensor: NumPy has no array at all for some of torch's dtypes.
    dtype = str(x.dtype).removeprefix("torch.") if is_torch(x) else x.dtype.name
    if dtype not in (*_FLOATS, "uint8"):
        raise TypeError(f"x has dtype {x.dtype}; one of {', '.join(_FLOATS)} is needed")
    if not is_torch(x):
        return x
    # A view that is only marked as negated (the imaginary part of a conjugate) has other bits.
    tensor = x.detach().cpu().resolve_neg()
    if dtype == "bfloat16":
        import torch

        return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def check_array(x: Any, name: str) -> None:
    """Raise TypeError naming the argument unless ``x`` is an array or tensor that holds values."""
    if is_torch(x):
        if x.is_meta:
            raise TypeError(f"{name} is a meta tensor, which holds no values")
        if str(x.layout) != "torch.strided":
            raise TypeError(f"{name} has the layout {x.layout}; pass {name}.to_dense()")
    elif not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array or a torch tensor, got {type(x).__name__}")
    elif isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be a masked array; fill it with .filled(value) first")


def like(array: NDArray[Any], x: Any) -> Any:
    """Return ``array`` as a torch tensor on the device of ``x`` where ``x`` is one."""
    if not is_torch(x):
        return array
    import torch

    return torch.from_numpy(array).to(x.device)


def is_torch(x: Any) -> bool:
    """Whether ``x`` is a torch tensor, without importing torch."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(x).__mro__)
