"""What a layer is held against: the bounds of its constant or weights, and what sampling gives."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mxstats.activations.manifest import LayerInfo
from mxstats.measure.calibrated import RowCalibration
from mxstats.measure.weighted_bounds import WeightedBounds
from mxstats.theory import log_ratio_mean, log_ratio_std, output_bounds
from mxstats.theory.bounds import OutputBounds


@dataclass(frozen=True)
class Expectation:
    """The constant under test and its theory, of one layer and p."""

    bounds: OutputBounds | WeightedBounds
    std: float
    """√(V/K), what sampling alone gives ℓ; of the distribution, also under other constants."""
    mean: float
    """E ℓ to leading order in 1/K, under the distribution's own constant."""
    constant_from: str
    """``"distribution"``, ``"constants"`` or ``"weights"``."""


class Expectations:
    """The expectation of each (p, layer), the theory computed once a hidden size.

    Parameters
    ----------
    distribution, block_size
        As :func:`mxstats.constant` takes them.
    constants
        As :func:`constants_by_layer` takes them, for p.
    names, p
        The layers of the store; the exponent that the constants are for.

    Raises
    ------
    ValueError, TypeError, MxstatsError
        As :func:`constants_by_layer`.
    """

    def __init__(
        self,
        distribution: Any,
        block_size: int,
        constants: Any = None,
        names: Sequence[str] = (),
        p: float = 2.0,
    ) -> None:
        self._given = {"distribution": distribution, "block_size": block_size}
        self._theory: dict[tuple[float, int], tuple[OutputBounds, float, float]] = {}
        self._constants = constants_by_layer(constants, names, p, block_size)

    def of(self, p: float, layer: LayerInfo) -> Expectation:
        """The expectation of a layer; raises ValueError for weights of another number of blocks."""
        key = (p, layer.hidden_size)
        if key not in self._theory:
            at = {"p": p, "hidden_size": layer.hidden_size} | self._given
            self._theory[key] = output_bounds(**at), log_ratio_std(**at), log_ratio_mean(**at)
        bounds, std, mean = self._theory[key]
        known = self._constants.get(layer.name)
        if known is None:
            return Expectation(bounds, std, mean, "distribution")
        if np.ndim(known) == 0:
            own = OutputBounds(p, bounds.block_size, layer.hidden_size, float(known))
            return Expectation(own, std, mean, "constants")
        try:
            weighted = WeightedBounds(bounds.block_size, layer.hidden_size, np.asarray(known))
        except ValueError as error:
            raise ValueError(f"constants[{layer.name!r}]: {error}") from None
        return Expectation(weighted, std, mean, "weights")


def constants_by_layer(
    constants: Any, names: Sequence[str], p: float, block_size: int
) -> Mapping[str, Any]:
    """Return the constants (numbers) or weights ([K]) of layers by name.

    Parameters
    ----------
    constants
        None; a number for all layers; a mapping of names; a :class:`RowCalibration`; the path of a
        file that one was saved to, which may know more layers than there are.
    names, p, block_size
        What they are for.

    Raises
    ------
    ValueError, TypeError, MxstatsError
        A calibration for another p or block size, and what ``mxstats.nn.convert`` refuses.
    ModuleNotFoundError
        torch, which reads the file, is not installed.
    """
    if constants is None:
        return {}
    if isinstance(constants, RowCalibration):
        for name, made, used in (
            ("p", constants.p, p),
            ("block_size", constants.block_size, block_size),
        ):
            if made != used:
                raise ValueError(f"constants: fitted for {name}={made}, not {used}")
        return constants.weights or constants.constants
    need_torch("constants")
    from mxstats.nn.constants import read_constants

    known = list(names)
    if isinstance(constants, str | os.PathLike):
        known += _names_in(Path(constants))
    found = read_constants(constants, known, p, block_size)
    return {name: np.asarray(one)[()] for name, one in found.items()}


def need_torch(what: str) -> None:
    """Raise ModuleNotFoundError that says what needs torch, unless it is installed."""
    if find_spec("torch") is None:
        raise ModuleNotFoundError(
            f"{what}: needs torch: pip install 'mxstats[torch]'", name="torch"
        )


def _names_in(path: Path) -> list[str]:
    """The layers that a file names; none where it is no such file, which its reader then says."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(content, dict):
        return []
    parts = (content.get(kind) for kind in ("constants", "weights"))
    return [name for part in parts if isinstance(part, dict) for name in part]
