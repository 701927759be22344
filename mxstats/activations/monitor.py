"""The statistics of a capture inside somebody's own training loop."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from mxstats.activations.capture import check_options, listening
from mxstats.activations.pick import Modules, listed
from mxstats.activations.statistics import Statistics, merge, tensors_of, to_device
from mxstats.errors import CaptureError

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

# Below this many blocks a row the noise √(V/K) of the estimate is above some 4 %.
FEW_BLOCKS = 16
# Sun, Chen, Kolter and Liu (2024), "Massive activations in large language models": above 100, and
# about a thousand times what is typical.
MASSIVE_ABSMAX = 100.0
MASSIVE_RATIO = 1000.0


class MonitorWarning(UserWarning):
    """A layer for which the estimate of the RMS needs a second look."""


def monitor(
    model: "nn.Module",
    modules: Modules = None,
    *,
    every: int = 100,
    block_size: int = 32,
    constants: Mapping[str, float] | None = None,
    drift: float = 0.05,
    log: "Callable[[int, pd.DataFrame], None] | None" = None,
) -> "Monitor":
    """Listen to every ``every``-th forward pass of ``model`` until the result is closed.

    >>> with monitor(model, every=100) as watch:  # doctest: +SKIP
    ...     train(model)
    >>> watch.summary()  # doctest: +SKIP

    Parameters
    ----------
    model, modules, block_size
        As :func:`capture` takes them.
    every
        Passes from one that is listened to, the first being one, to the next.
    constants
        Calibrated c of each layer (p = 2), to be compared with what the last pass calls for.
    drift
        Largest |ln(c now/c calibrated)| without a warning.
    log
        Called after each such pass with its number and its :meth:`Monitor.summary`.

    Raises
    ------
    ValueError
        ``every`` or ``block_size`` below 1, or ``constants`` of a layer that is not listened to.
    CaptureError
        Nothing is picked; during a pass, a layer that was not called in the first one.
    """
    check_options(0, "input", block_size)
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    return Monitor(model, modules, every, block_size, dict(constants or {}), drift, log)


class Monitor:
    """What :func:`monitor` has seen; a context manager that closes itself.

    Attributes
    ----------
    latest : dict[str, Statistics]
        Statistics of the last pass that was listened to, by layer.
    total : dict[str, Statistics]
        Statistics of all of them.
    warnings : list[str]
        Every warning given, once a layer and kind.
    """

    def __init__(
        self,
        model: "nn.Module",
        modules: Modules,
        every: int,
        block_size: int,
        constants: Mapping[str, float],
        drift: float,
        log: "Callable[[int, pd.DataFrame], None] | None",
    ):
        self.latest: dict[str, Statistics] = {}
        self.total: dict[str, Statistics] = {}
        self.warnings: list[str] = []
        self._warned: set[tuple[str, str]] = set()
        self._every, self._constants, self._drift, self._log = every, constants, drift, log
        self._stack = ExitStack()
        self._seen = self._stack.enter_context(
            listening(
                model,
                modules,
                keep_rows=0,
                block_size=block_size,
                active=lambda number: number % every == 0,
            )
        )
        unknown = sorted(set(constants) - set(self._seen.names))
        if unknown:
            self._stack.close()
            raise ValueError(f"constants has layers that are not listened to: {listed(unknown)}")
        self._seen.after_pass = self._after_pass

    def summary(self) -> "pd.DataFrame":
        """One line a layer of the last pass.

        Columns ``layer``, ``role``, ``rows``, ``n_blocks`` (K), ``rms``, ``absmax``, ``kurtosis``,
        ``channel`` (of the largest entry), ``massive_channels``, ``constant`` (c that makes the
        mean log error of p = 2 vanish: exp(½ mean ln(mean m_k²/q))) and ``log_std`` (standard
        deviation of ln R, ½ that of the log ratio).
        """
        import pandas as pd

        lines = []
        for layer in self._seen:
            state = self.latest.get(layer.name)
            if state is not None and int(state.rows):
                lines.append({"layer": layer.name, "role": layer.role, **_facts(state)})
        return pd.DataFrame(lines)

    def close(self) -> None:
        """Take the hooks away.

        Raises
        ------
        CaptureError
            No pass of the model was seen.
        """
        self._stack.close()
        if self._seen.passes == 0:
            raise CaptureError(
                "the model was never called while it was monitored; a model that torch.compile "
                "has compiled before does not fire hooks: monitor what is called, before it is "
                "compiled"
            )

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._stack.close()

    def _after_pass(self) -> None:
        silent = [layer.name for layer in self._seen if layer.calls == 0]
        if silent:
            raise CaptureError(
                f"never called in a pass of the model: {listed(silent)}; a model that "
                "torch.compile has compiled before does not fire hooks: monitor it before"
            )
        self.latest = self._seen.statistics()
        for layer in self._seen:
            state = self.latest[layer.name]
            known = self.total.get(layer.name)
            self.total[layer.name] = state if known is None else merge(known, state)
            layer.forget()
            self._warn_of(layer.name, _facts(state))
        if self._log is not None:
            self._log((self._seen.passes - 1) * self._every, self.summary())

    def _warn_of(self, name: str, facts: Mapping[str, Any]) -> None:
        if facts["n_blocks"] < FEW_BLOCKS:
            self._warn(
                name,
                "blocks",
                f"{name} has K = {facts['n_blocks']} blocks a row, below {FEW_BLOCKS}: the noise "
                f"√(V/K) of the estimate is large (ln R has standard deviation "
                f"{facts['log_std']:.3f})",
            )
        if facts["massive_channels"]:
            self._warn(
                name,
                "massive",
                f"{name} has {facts['massive_channels']} massive channel(s): channel "
                f"{facts['channel']} reaches {facts['absmax']:g} where the rms is typically "
                f"{facts['typical_rms']:.3g}",
            )
        if name in self._constants:
            off = float(np.log(facts["constant"] / self._constants[name]))
            if abs(off) > self._drift:
                self._warn(
                    name,
                    "drift",
                    f"{name} calls for c = {facts['constant']:.4f} where {self._constants[name]:g} "
                    f"was calibrated: {100 * np.expm1(off):+.1f} %",
                )

    def _warn(self, name: str, kind: str, message: str) -> None:
        if (name, kind) not in self._warned:
            self._warned.add((name, kind))
            self.warnings.append(message)
            warnings.warn(message, MonitorWarning, stacklevel=2)


def _facts(state: Statistics) -> dict[str, Any]:
    found = {name: one.numpy() for name, one in tensors_of(to_device(state, "cpu")).items()}
    rows = int(found["rows"])
    n_values = rows * state.hidden_size
    sums = found["channel_sums"]
    unit = np.ldexp(1.0, int(found["exponent"])) if rows else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        channel_rms = np.sqrt(sums[1] / np.float64(rows)) * unit
        total = sums.sum(axis=1)
        log_sum, log_square_sum = found["log_sums"] / np.float64(rows)
        typical = float(np.median(channel_rms))
        absmax = found["channel_absmax"]
        massive = (absmax >= MASSIVE_ABSMAX) & (absmax >= MASSIVE_RATIO * typical)
        return {
            "rows": rows,
            "n_blocks": state.n_blocks,
            "rms": float(np.sqrt(total[1] / np.float64(n_values)) * unit),
            "typical_rms": typical,
            "absmax": float(absmax.max()),
            "kurtosis": float(total[3] * n_values / np.square(total[1])),
            "channel": int(absmax.argmax()),
            "massive_channels": int(massive.sum()),
            "constant": float(np.exp(log_sum / 2)),
            "log_std": float(np.sqrt(max(0.0, log_square_sum - log_sum**2)) / 2),
        }
