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
    if is_torch(x):
        tensor = x.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            import torch

            array = tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        else:
            array = tensor.numpy()
    elif isinstance(x, np.ndarray):
        array = x
    else:
        raise TypeError(f"x must be a NumPy array or a torch tensor, got {type(x).__name__}")
    if array.dtype.name not in (*_FLOATS, "uint8"):
        raise TypeError(f"x has dtype {array.dtype}; one of {', '.join(_FLOATS)} is needed")
    return array


def like(array: NDArray[Any], x: Any) -> Any:
    """Return ``array`` as a torch tensor on the device of ``x`` where ``x`` is one."""
    if not is_torch(x):
        return array
    import torch

    return torch.from_numpy(array).to(x.device)


def is_torch(x: Any) -> bool:
    """Whether ``x`` is a torch tensor, without importing torch."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(x).__mro__)
