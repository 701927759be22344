"""``mxstats quantize``: a tensor from a file, its codes and scales, and what that cost."""

import math
import os
import tokenize
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_pairs
from mxstats.errors import MxstatsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mxstats.formats import QuantizationError, Quantized

_SAFETENSORS_FLOATS = ("F16", "BF16", "F32", "F64")
# What numpy lets through from the parts it is made of where a header is damaged: the tokenizer and
# the parser (nesting too deep is a MemoryError or a RecursionError), and sizes beyond 64 bits.
_HEADER_ERRORS = (
    ValueError, TypeError, EOFError, OSError, ArithmeticError, MemoryError, RecursionError,
    SyntaxError, tokenize.TokenError,
)  # fmt: skip


def run(
    file: Annotated[Path, typer.Argument(help="A .npy or .safetensors file.", show_default=False)],
    fmt: Annotated[str, typer.Option("--fmt", help="Format: see mxstats formats.")] = "mxfp8_e4m3",
    scale_rule: Annotated[
        str | None,
        typer.Option(
            "--scale-rule", help="floor (when not given), ceil, even or rceil; not for nvfp4."
        ),
    ] = None,
    axis: Annotated[int, typer.Option("--axis", help="Axis that is cut into blocks.")] = -1,
    tensor: Annotated[
        str | None, typer.Option("--tensor", help="Which tensor, where the file holds several.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write codes and scales to this .safetensors file.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Quantise a tensor from a file: error, clipped and flushed elements, codes and scales."""
    from mxstats.formats import ScaleRule, block_format, quantization_error, quantize

    # What is wrong with the command line is said before a large file is read.
    known = block_format(fmt)
    rule = None if scale_rule is None else ScaleRule(scale_rule)
    if rule is None and known.scale.is_power_of_two:
        rule = ScaleRule.FLOOR
    if out is not None:
        _check_out(out, file)
    name, x = _read(file, tensor)
    quantized = quantize(x, known, scale_rule=rule, axis=axis)
    found = quantization_error(x, quantized)
    about = {
        "file": str(file),
        "tensor": name,
        "dtype": x.dtype.name,
        "shape": list(x.shape),
        "format": known.name,
        "scale_rule": None if rule is None else rule.value,
        "axis": quantized.axis,
        "tensor_scale": quantized.tensor_scale,
    }
    if out is not None:
        _write(out, quantized, about)
    if json:
        print_json(about | _measures(found) | {"out": None if out is None else str(out)})
        return
    how = f"{known.name}, {f'{rule.value}, ' if rule else ''}axis {quantized.axis}"
    shape = " × ".join(str(n) for n in x.shape)
    print_pairs(
        name or file.name, [("tensor", f"{shape} {x.dtype.name}"), ("format", how), *_pairs(found)]
    )
    if quantized.tensor_scale is not None:
        print(f"The tensor's scale g is {quantized.tensor_scale:.9g}.")
    if found.nan_blocks:
        print(f"{found.nan_elements} elements in NaN blocks are left out of errors and shares.")
    if out is not None:
        print(f"Codes (one to a byte) and scales are in {out}.")


def _measures(found: "QuantizationError") -> dict[str, Any]:
    return {
        "elements": found.elements,
        "blocks": found.blocks,
        "nan_blocks": found.nan_blocks,
        "nan_elements": found.nan_elements,
        "bits_per_element": found.bits_per_element,
        "snr_db": found.snr_db,
        "relative_rms_error": found.relative_rms_error,
        "max_abs_error": found.max_abs_error,
        "clipped": found.clipped,
        "clipped_share": found.clipped_share,
        "flushed": found.flushed,
        "flushed_share": found.flushed_share,
    }


def _pairs(found: "QuantizationError") -> list[tuple[str, str]]:
    return [
        ("elements", f"{found.elements}"),
        ("blocks", f"{found.blocks}"),
        ("NaN blocks", f"{found.nan_blocks}"),
        ("bits an element, scales included", _shown(found.bits_per_element, ".6g")),
        ("signal-to-quantisation-noise ratio", _shown(found.snr_db, ".4f", " dB")),
        ("relative RMS error", _shown(found.relative_rms_error, ".6g")),
        ("largest absolute error", f"{found.max_abs_error:.6g}"),
        ("clipped, |x| > largest · scale", _shown(100 * found.clipped_share, ".4f", " %")),
        ("flushed to 0", _shown(100 * found.flushed_share, ".4f", " %")),
    ]


def _shown(value: float, how: str, unit: str = "") -> str:
    """A number; a dash where there is none (a tensor of zeros has no signal)."""
    return "–" if math.isnan(value) else f"{value:{how}}{unit}"


def _read(file: Path, tensor: str | None) -> tuple[str | None, "NDArray[Any]"]:
    """The tensor's name, where the file gives one, and its values."""
    if file.suffix not in (".npy", ".safetensors"):
        raise ValueError(f"file {str(file)!r}: a .npy or a .safetensors file is needed")
    if not file.is_file():
        raise MxstatsError(f"{file}: there is no such file")
    if file.suffix == ".safetensors":
        return _read_safetensors(file, tensor)
    if tensor is not None:
        raise ValueError(f"tensor={tensor!r}: a .npy file holds one tensor, which has no name")
    return None, _read_npy(file)


def _read_npy(file: Path) -> "NDArray[np.floating[Any]]":
    """The array, mapped rather than read; never a pickle."""
    import numpy as np

    try:
        # The header is parsed as Python; what the interpreter remarks on it is no one's concern.
        with warnings.catch_warnings(), np.errstate(over="raise"):
            warnings.simplefilter("ignore")
            array = np.lib.format.open_memmap(file, mode="r")
    except _HEADER_ERRORS as error:
        raise MxstatsError(f"{file} cannot be read: {error}") from error
    if array.dtype.kind == "V":
        raise TypeError(
            f"{file} has dtype {array.dtype}: .npy has no bfloat16; a .safetensors file has"
        )
    if array.dtype.name not in ("float16", "float32", "float64"):
        raise TypeError(
            f"{file} has dtype {array.dtype}; float16, float32 or float64 can be quantised"
        )
    # The other byte order is a copy; what is computed with has this machine's.
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read_safetensors(file: Path, tensor: str | None) -> tuple[str, "NDArray[Any]"]:
    """One tensor: the named one, or the only one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            names = list(opened.keys())
            if tensor is None and len(names) == 1:
                (tensor,) = names
            if tensor is None or tensor not in names:
                what = "which tensor is meant" if tensor is None else f"tensor={tensor!r} is none"
                raise ValueError(f"{file} holds {len(names)} tensors, {what}: {_listed(names)}")
            dtype = opened.get_slice(tensor).get_dtype()
            if dtype not in _SAFETENSORS_FLOATS:
                raise TypeError(
                    f"tensor {tensor!r} of {file} has dtype {dtype}; "
                    f"one of {', '.join(_SAFETENSORS_FLOATS)} can be quantised"
                )
            return tensor, opened.get_tensor(tensor)
    except (SafetensorError, OSError) as error:
        raise MxstatsError(f"{file} cannot be read: {error}") from error


def _listed(names: list[str], most: int = 20) -> str:
    """Names for a message; a whole model has hundreds."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(sorted(names)[:most]) or "it is empty") + more


def _check_out(out: Path, file: Path) -> None:
    if out.suffix != ".safetensors":
        raise ValueError(f"out={str(out)!r}: a .safetensors file is needed")
    if not out.parent.is_dir():
        raise ValueError(f"out={str(out)!r}: there is no folder {str(out.parent)!r}")
    if out.is_dir():
        raise ValueError(f"out={str(out)!r} is a folder")
    if out.exists() and file.exists() and out.samefile(file):
        raise ValueError(f"out={str(out)!r} is the input, which is never overwritten")


def _write(out: Path, quantized: "Quantized", about: dict[str, Any]) -> None:
    """Write beside ``out`` and rename, so that no reader meets half a file."""
    import numpy as np
    from safetensors.numpy import save

    from mxstats import __version__

    tensors = {"codes": quantized.codes, "scales": quantized.scales}
    if quantized.tensor_scale is not None:
        tensors["tensor_scale"] = np.array([quantized.tensor_scale], dtype=np.float32)
    metadata = {
        "format": quantized.fmt.name,
        "scale_rule": about["scale_rule"] or "none",
        "axis": str(quantized.axis),
        "block_size": str(quantized.fmt.block_size),
        "dtype": about["dtype"],
        "mxstats_version": __version__,
    }
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        temporary.write_bytes(save(tensors, metadata=metadata))
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
