"""Constants of a model's norms, as a number, by name, or in a JSON file.

The file is an object with ``"constants"``, names to numbers c, or ``"weights"``, names to lists of
one weight for each block, or both:

    {"p": 2.0, "block_size": 32, "constants": {"model.layers.0.input_layernorm": 1.9}}

Where it says ``p`` or ``block_size`` they must be those in use. Other keys are for the reader.
"""

import json
import numbers
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from mxstats.errors import MxstatsError

Constants: TypeAlias = "float | Mapping[str, Any] | str | os.PathLike[str] | None"


class ConstantsError(MxstatsError, ValueError):
    """A file of constants is missing, torn or of another form."""


def read_constants(
    constants: Constants,
    names: Sequence[str],
    p: float,
    block_size: int,
    *,
    staying: Sequence[str] = (),
) -> dict[str, float | torch.Tensor]:
    """Return the constant c, or the weights of the blocks [K] in float32, of norms by name.

    Parameters
    ----------
    constants
        A number for all, a mapping of names to numbers or arrays, a path to a file, or None.
    names
        The norms that are converted, by qualified name.
    p, block_size
        In use.
    staying
        Norms of the model that are never converted. A calibration of every norm of a model has
        constants of them too; those are not among what is returned.

    Raises
    ------
    ConstantsError
        A file is missing, torn or of another form, or was made for another p or block size.
    TypeError, ValueError
        Constants of another kind; a name of no such norm, with the closest that is converted.
    """
    if constants is None:
        return {}
    if constants == "":
        raise ValueError("constants='': the path of a JSON file is needed")
    if isinstance(constants, str | os.PathLike):
        constants = _read_for(Path(constants), p, block_size)
    if _is_number(constants):
        return dict.fromkeys(names, float(constants))  # pyright: ignore[reportArgumentType]
    if not isinstance(constants, Mapping):
        raise TypeError(
            "constants must be a number, a mapping of names, or a path to a JSON file, got "
            f"{type(constants).__name__}"
        )
    known = {*names, *staying}
    for name in constants:
        if name not in known:
            raise ValueError(
                f"constants: {name!r} is no norm that is converted; {_closest(name, names)}"
            )
    found = {name: _constant(name, value) for name, value in constants.items()}
    return {name: value for name, value in found.items() if name not in staying}


def _constant(name: str, value: Any) -> float | torch.Tensor:
    if _is_number(value) or (isinstance(value, torch.Tensor) and value.ndim == 0):
        return float(value)
    try:
        if isinstance(value, torch.Tensor):
            weights = value.detach().to(torch.float32, copy=True)
        else:
            weights = torch.from_numpy(np.array(value, dtype=np.float32))
    except (TypeError, ValueError):
        weights = None
    if weights is None or weights.ndim != 1 or isinstance(value, str | bool):
        raise TypeError(
            f"constants[{name!r}] must be a number, or an array with one weight for each block"
        )
    return weights


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _closest(name: Any, names: Sequence[str]) -> str:
    found = get_close_matches(str(name), names, n=1, cutoff=0.0)
    return f"the closest is {found[0]!r}" if found else "none is"


def read_file(path: Path) -> dict[str, Any]:
    """Return what a file of constants holds, its constants and weights checked for their kind.

    Raises ConstantsError where it is missing, torn or of another form.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConstantsError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConstantsError(f"{path}: not a whole JSON file: {error}") from error
    if not isinstance(content, dict) or not content.keys() & {"constants", "weights"}:
        raise ConstantsError(f"{path}: an object with 'constants' or 'weights' is needed")
    of_kind: dict[str, dict[str, Any]] = {}
    for kind, fits, wanted in (
        ("constants", _is_number, "a number"),
        ("weights", _is_list, "a list of numbers"),
    ):
        of_kind[kind] = content.get(kind, {})
        if not isinstance(of_kind[kind], dict):
            raise ConstantsError(f"{path}: {kind!r} must be an object of names")
        for name, value in of_kind[kind].items():
            if not fits(value):
                raise ConstantsError(f"{path}: {kind}[{name!r}] must be {wanted}")
    for name in of_kind["constants"].keys() & of_kind["weights"].keys():
        raise ConstantsError(f"{path}: {name!r} has both a constant and weights")
    return {**content, **of_kind}


def _read_for(path: Path, p: float, block_size: int) -> dict[str, Any]:
    """Constants and weights by name, of a file that was made for this p and block size."""
    content = read_file(path)
    for key, used in (("p", p), ("block_size", block_size)):
        if key in content and content[key] != used:
            raise ConstantsError(f"{path}: made for {key}={content[key]!r}, not {used!r}")
    return {**content["constants"], **content["weights"]}


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_number(each) for each in value)
