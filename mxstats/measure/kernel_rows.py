"""Rows through the very kernel that trains, :func:`mxstats.kernels.mxnorm`, and what came out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mxstats.formats import BlockFormat, ScaleRule
from mxstats.formats.reference import Quantized
from mxstats.formats.statistics import quantization_error
from mxstats.measure.expectations import need_torch
from mxstats.measure.weighted_bounds import WeightedBounds
from mxstats.theory.bounds import OutputBounds

# Entries in one launch: the torch twin makes some ten temporaries of float64.
_PIECE = 2**21


@dataclass(frozen=True)
class KernelSettings:
    """How the kernel is run."""

    fmt: BlockFormat
    scale_rule: ScaleRule | str | None
    eps: float
    backend: str
    dtype: str
    """``"bfloat16"`` or ``"float32"``: that of the store, which its rows have exactly."""


@dataclass(frozen=True, eq=False)
class KernelRows:
    """The kernel's output for the rows of a layer."""

    quantized: Quantized
    rho: NDArray[np.float32]
    backend: str
    """What ran, ``"triton"`` or ``"torch"``."""
    device: str
    differs: NDArray[np.bool_] | None
    """Rows whose codes, scales or ρ̃ are not those of the torch twin; None where it is what ran."""


def run_kernel(
    rows: NDArray[np.float32], bounds: OutputBounds | WeightedBounds, settings: KernelSettings
) -> KernelRows:
    """Normalise and cast rows, [rows, hidden_size], with the bounds' constant or weights.

    Raises
    ------
    ModuleNotFoundError
        torch is missing, or Triton where it is asked for.
    ValueError
        As :func:`mxstats.kernels.mxnorm`.
    """
    need_torch("the kernel")
    import torch

    from mxstats.kernels import mxnorm
    from mxstats.kernels.backend import resolve
    from mxstats.kernels.mxnorm_arguments import static_tensor_scale

    use_gpu = settings.backend != "torch" and torch.cuda.is_available()
    device = torch.device("cuda" if use_gpu else "cpu")
    backend = resolve(settings.backend, torch.empty(0, device=device))
    estimate: dict[str, Any] = {"p": bounds.p}
    if isinstance(bounds, WeightedBounds):
        estimate["weights"] = torch.tensor(bounds.weights, dtype=torch.float32)
    else:
        estimate["c"] = bounds.constant
    g = None
    if settings.fmt.tensor_scale:
        g = static_tensor_scale(settings.fmt, bounds.hidden_size, **estimate)
    given = {
        "fmt": settings.fmt,
        "scale_rule": settings.scale_rule,
        "eps": settings.eps,
        "tensor_scale": g,
    } | estimate
    on_device = given
    if "weights" in given:
        on_device = given | {"weights": given["weights"].to(device)}
    outputs, differs = [], []
    step = max(1, _PIECE // bounds.hidden_size)
    for first in range(0, len(rows), step):
        x = torch.from_numpy(rows[first : first + step]).to(getattr(torch, settings.dtype))
        made = mxnorm(x.to(device), **on_device, backend=backend)
        made = tuple(part.cpu().numpy() for part in (made.codes, made.scales, made.rho))
        outputs.append(made)
        if backend != "torch":
            twin = mxnorm(x, **given, backend="torch")
            twin = (twin.codes.numpy(), twin.scales.numpy(), twin.rho.numpy())
            differs.append(_differs(made, twin))
    codes, scales, rho = (np.concatenate(part) for part in zip(*outputs, strict=True))
    return KernelRows(
        quantized=Quantized(codes, scales, settings.fmt, 1, g),
        rho=rho,
        backend=backend,
        device=torch.cuda.get_device_name() if use_gpu else "cpu",
        differs=np.concatenate(differs) if differs else None,
    )


def kernel_summary(
    run: KernelRows,
    rows: NDArray[np.float32],
    table: pd.DataFrame,
    bounds: OutputBounds | WeightedBounds,
    eps: float,
) -> dict[str, Any]:
    """What the kernel did to the rows that ``table`` (of :func:`measure_rows`) has.

    Returns
    -------
    dict
        - ``kernel_r_median``, ``_low``, ``_high``: R from ρ̃ itself, ρ̃·√(RMS² + ε), the ratio of
          MXNorm's scale to RMSNorm's under the same ε;
        - ``rho_error``: largest |ρ̃·√(r̂² + ε) − 1| against the float64 estimate r̂: a few 2^−24,
          of ρ̃ and of c or the weights;
        - ``dequantised_rms_median``, ``_low``, ``_high`` and ``dequantised_absmax`` of the output,
          a row; ``dequantised_inside``: no element above the bound by more than its rounding;
        - ``clipped_share``, ``flushed_share``, ``snr_db`` of the cast of y = fl32(ρ̃·x)
          (:mod:`mxstats.formats.statistics`).
    """
    names = ("kernel_r_median", "kernel_r_low", "kernel_r_high", "rho_error",
             "dequantised_rms_median", "dequantised_rms_low", "dequantised_rms_high",
             "dequantised_absmax", "clipped_share", "flushed_share", "snr_db")  # fmt: skip
    if table.empty:
        return dict.fromkeys(names, float("nan")) | {"dequantised_inside": True}
    kept = table.index.to_numpy()
    rho = run.rho[kept].astype(np.float64)
    ratio = rho * np.hypot(table["rms"].to_numpy(), np.sqrt(eps))
    error = np.abs(rho * np.hypot(table["estimate"].to_numpy(), np.sqrt(eps)) - 1.0)
    whole = run.quantized
    part = Quantized(
        whole.codes[kept], whole.scales[kept], whole.fmt, whole.axis, whole.tensor_scale
    )
    # A product of two float32, rounded once: the kernel's y.
    y = run.rho[kept, None] * rows[kept]
    absmax, rms = np.empty(len(kept)), np.empty(len(kept))
    step = max(1, _PIECE // rows.shape[1])
    for first in range(0, len(kept), step):
        some = slice(first, first + step)
        piece = Quantized(part.codes[some], part.scales[some], part.fmt, 1, part.tensor_scale)
        values = piece.dequantize().astype(np.float64)
        absmax[some] = np.abs(values).max(axis=1)
        rms[some] = np.sqrt(np.mean(values**2, axis=1))
    cast = quantization_error(y, part)
    # Nearest even of m mantissa bits: half of 2^−m; and ρ̃ and y are each rounded to float32.
    rounding = 2.0 ** -(whole.fmt.element.mantissa_bits + 1) + 2.0**-22
    values = (
        np.median(ratio), ratio.min(), ratio.max(), error.max(),
        np.median(rms), rms.min(), rms.max(), absmax.max(),
        cast.clipped_share, cast.flushed_share, cast.snr_db,
    )  # fmt: skip
    found: dict[str, Any] = dict(zip(names, map(float, values), strict=True))
    found["dequantised_inside"] = bool(absmax.max() <= bounds.max_abs * (1.0 + rounding))
    return found


def _differs(made: tuple[Any, ...], twin: tuple[Any, ...]) -> NDArray[np.bool_]:
    """Rows of which any bit of codes, scales or ρ̃ is not the same; a NaN is a NaN."""
    codes, scales, rho = made
    other = (rho.view(np.int32) != twin[2].view(np.int32)) & ~(np.isnan(rho) & np.isnan(twin[2]))
    return (codes != twin[0]).any(axis=1) | (scales != twin[1]).any(axis=1) | other
