"""Streaming statistics of the rows that enter a layer: exact to merge, in any split and order.

With x a row of D entries in K = ⌈D/B⌉ blocks of B, m_k the largest magnitude of block k and
q = (1/D) Σ x² the row's mean square, these sums are kept, all in float64 on the rows' device:

    Σ x^n, n = 1 … 4, and max|x|             for every channel and for every position in the window
    Σ a_k,  Σ a_k a_j,  a_k = m_k²/(K q)     what a fit of one weight a block needs: the estimate
                                             r̂² = mean_k w_k m_k² has r̂²/q = Σ_k w_k a_k
    Σ ln Σ_k a_k,  Σ (ln Σ_k a_k)²           the log ratio with all weights equal: ln(mean m_k²/q)
    the largest entries, with token and channel; how many entries have each binary exponent

Sums of powers are kept in units of 2^(n·exponent), ``exponent`` being that of the largest entry so
far. Changing the unit multiplies by a power of two, so it costs no accuracy, and a fourth power of
1e25, of 1e-30 or of 1e200 is as safe as one of 1. A sum over a block or over the layer is the sum
over its channels, and is not kept twice.

Rows with a NaN or an infinity, and rows of zeros, are counted and take no other part.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from mxstats.activations.row_sums import (
    EXPONENT_BINS,
    POWERS,
    block_absmax,
    exponent_counts,
    power_of_two,
    power_sums,
)
from mxstats.activations.top import TOP, TopEntries, larger_entries, no_entries, top_of_rows

if TYPE_CHECKING:
    import torch

# Positions from here on share the last bin, so that the state has a largest size.
MAX_POSITIONS = 4096
# Below any float64, so that the first rows set the unit.
_NO_EXPONENT = -1100
# Largest magnitude of a row that counts as zero: its square would leave float64's normal range.
_ZERO_BELOW = 2.0**-500
_PIECE = 2**19


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over the rows of one layer; see the module's docstring for the formulas.

    Attributes
    ----------
    hidden_size, block_size
        D and B.
    exponent
        Sums of powers n are in units of 2^(n·exponent); scalar.
    rows, zero_rows, nonfinite_rows
        Rows that take part, and rows that were left out; scalars.
    channel_sums, channel_absmax
        ``[4, D]`` scaled, and ``[D]``.
    position_rows, position_sums, position_absmax
        ``[P]``, ``[4, P]`` scaled, and ``[P]``; P is a power of two that grows up to 4096.
    ratio_sums, ratio_products
        Σ a_k, ``[K]``, and Σ a_k a_j, ``[K, K]``.
    log_sums
        Σ ln Σ_k a_k and Σ (ln Σ_k a_k)², ``[2]``.
    exponents
        Entries with each binary exponent, ``[256]``.
    top
        The largest entries.
    """

    hidden_size: int
    block_size: int
    exponent: "torch.Tensor"
    rows: "torch.Tensor"
    zero_rows: "torch.Tensor"
    nonfinite_rows: "torch.Tensor"
    channel_sums: "torch.Tensor"
    channel_absmax: "torch.Tensor"
    position_rows: "torch.Tensor"
    position_sums: "torch.Tensor"
    position_absmax: "torch.Tensor"
    ratio_sums: "torch.Tensor"
    ratio_products: "torch.Tensor"
    log_sums: "torch.Tensor"
    exponents: "torch.Tensor"
    top: TopEntries

    @property
    def n_blocks(self) -> int:
        """K, a short last block included."""
        return -(-self.hidden_size // self.block_size)


def empty(
    hidden_size: int, *, block_size: int = 32, device: "torch.device | str" = "cpu"
) -> Statistics:
    """Statistics of no rows, from which :func:`update` starts.

    Raises
    ------
    ValueError
        ``hidden_size`` or ``block_size`` below 1.
    """
    import torch

    for name, size in (("hidden_size", hidden_size), ("block_size", block_size)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    n_blocks = -(-hidden_size // block_size)

    def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return Statistics(
        hidden_size=hidden_size,
        block_size=block_size,
        exponent=torch.full((), _NO_EXPONENT, dtype=torch.int64, device=device),
        rows=zeros(dtype=torch.int64),
        zero_rows=zeros(dtype=torch.int64),
        nonfinite_rows=zeros(dtype=torch.int64),
        channel_sums=zeros(POWERS, hidden_size),
        channel_absmax=zeros(hidden_size),
        position_rows=zeros(1, dtype=torch.int64),
        position_sums=zeros(POWERS, 1),
        position_absmax=zeros(1),
        ratio_sums=zeros(n_blocks),
        ratio_products=zeros(n_blocks, n_blocks),
        log_sums=zeros(2),
        exponents=zeros(EXPONENT_BINS, dtype=torch.int64),
        top=no_entries(TOP, device),
    )


def update(
    state: Statistics,
    rows: "torch.Tensor",
    positions: "torch.Tensor",
    tokens: "torch.Tensor | None" = None,
) -> Statistics:
    """``state`` with ``rows`` added; ``state`` itself does not change.

    Parameters
    ----------
    state
        On the device of ``rows``.
    rows
        ``[n, D]`` of any floating dtype.
    positions
        Place of each row's token in its window, integer ``[n]``.
    tokens
        Number of each row's token in the whole reading, integer ``[n]``; by default they go on
        from the rows seen before.

    Raises
    ------
    ValueError
        ``rows`` is not ``[n, D]``, or ``positions`` or ``tokens`` is not ``[n]``.
    """
    import torch

    _check_shapes(state, rows, positions, tokens)
    if tokens is None:
        seen = int(state.rows + state.zero_rows + state.nonfinite_rows)
        tokens = torch.arange(seen, seen + len(rows), device=rows.device)
    # Four powers of a piece are in memory at a time: 16 MB on a CPU, near its cache.
    size = max(1, (_PIECE if rows.device.type == "cpu" else 64 * _PIECE) // state.hidden_size)
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        state = _update_piece(state, rows[part], positions[part], tokens[part])
    return state


def merge(a: Statistics, b: Statistics) -> Statistics:
    """Statistics of the rows of ``a`` and of ``b`` together, on the device of ``a``.

    Raises
    ------
    ValueError
        They are of another ``hidden_size`` or ``block_size``.
    """
    import torch

    for name in ("hidden_size", "block_size"):
        if getattr(a, name) != getattr(b, name):
            raise ValueError(
                f"statistics of {name} {getattr(a, name)} and {getattr(b, name)} cannot be merged"
            )
    device = a.exponent.device
    b = to_device(b, device)
    exponent = torch.maximum(a.exponent, b.exponent)
    length = max(len(a.position_rows), len(b.position_rows))
    a, b = (with_positions(_in_units_of(part, exponent), length) for part in (a, b))
    return Statistics(
        hidden_size=a.hidden_size,
        block_size=a.block_size,
        exponent=exponent,
        rows=a.rows + b.rows,
        zero_rows=a.zero_rows + b.zero_rows,
        nonfinite_rows=a.nonfinite_rows + b.nonfinite_rows,
        channel_sums=a.channel_sums + b.channel_sums,
        channel_absmax=torch.maximum(a.channel_absmax, b.channel_absmax),
        position_rows=a.position_rows + b.position_rows,
        position_sums=a.position_sums + b.position_sums,
        position_absmax=torch.maximum(a.position_absmax, b.position_absmax),
        ratio_sums=a.ratio_sums + b.ratio_sums,
        ratio_products=a.ratio_products + b.ratio_products,
        log_sums=a.log_sums + b.log_sums,
        exponents=a.exponents + b.exponents,
        top=larger_entries(a.top, b.top),
    )


def tensors_of(state: Statistics) -> "dict[str, torch.Tensor]":
    """The tensors of ``state`` by name, the entries of ``top`` as ``top.value`` and so on."""
    found = {
        field.name: getattr(state, field.name)
        for field in fields(state)
        if field.name not in ("hidden_size", "block_size", "top")
    }
    return found | {f"top.{name}": tensor for name, tensor in state.top._asdict().items()}


def from_tensors(
    hidden_size: int, block_size: int, tensors: "dict[str, torch.Tensor]"
) -> Statistics:
    """Undo :func:`tensors_of`."""
    top = {
        name.removeprefix("top."): value
        for name, value in tensors.items()
        if name.startswith("top.")
    }
    rest = {name: value for name, value in tensors.items() if not name.startswith("top.")}
    return Statistics(hidden_size, block_size, **rest, top=TopEntries(**top))


def to_device(state: Statistics, device: "torch.device | str") -> Statistics:
    """``state`` on another device."""
    moved = {name: tensor.to(device) for name, tensor in tensors_of(state).items()}
    return from_tensors(state.hidden_size, state.block_size, moved)


def with_positions(state: Statistics, length: int) -> Statistics:
    """``state`` with room for ``length`` positions."""
    from torch.nn.functional import pad

    more = length - len(state.position_rows)
    if more <= 0:
        return state
    return replace(
        state,
        position_rows=pad(state.position_rows, (0, more)),
        position_sums=pad(state.position_sums, (0, more)),
        position_absmax=pad(state.position_absmax, (0, more)),
    )


def _update_piece(
    state: Statistics, rows: "torch.Tensor", positions: "torch.Tensor", tokens: "torch.Tensor"
) -> Statistics:
    magnitude = rows.abs()
    largest = block_absmax(magnitude, state.block_size).double()
    row_absmax = largest.amax(1)
    finite = row_absmax.isfinite()
    used = finite & (row_absmax > _ZERO_BELOW)
    if not bool(used.all()):
        state = replace(
            state,
            zero_rows=state.zero_rows + (finite & ~used).sum(),
            nonfinite_rows=state.nonfinite_rows + (~finite).sum(),
        )
        rows, magnitude, largest = rows[used], magnitude[used], largest[used]
        positions, tokens = positions[used], tokens[used]
        if len(rows) == 0:
            return state
    return _add(state, rows, magnitude, largest, positions, tokens)


def _add(
    state: Statistics,
    rows: "torch.Tensor",
    magnitude: "torch.Tensor",
    largest: "torch.Tensor",
    positions: "torch.Tensor",
    tokens: "torch.Tensor",
) -> Statistics:
    import torch

    row_absmax = largest.amax(1)
    # Every row in units of its own power of two: entries in (-1, 1), so no power overflows and
    # the row's mean square is right however small or large the row is beside the others.
    row_exponent = torch.frexp(row_absmax).exponent.to(torch.int64)
    unit = power_of_two(-row_exponent.clamp(-1000, 1000))[:, None]
    exponent = torch.maximum(state.exponent, row_exponent.amax())
    state = _in_units_of(state, exponent)
    positions = positions.clamp(0, MAX_POSITIONS - 1)
    needed = int(positions.amax()) + 1
    state = with_positions(state, 1 << (needed - 1).bit_length())

    orders = torch.arange(1, POWERS + 1, device=rows.device)[:, None]
    weights = power_of_two(orders * (row_exponent - exponent))
    row_sums, channel_sums = power_sums(rows, unit, weights)
    mean_square = row_sums[1] / state.hidden_size
    ratios = (largest * unit).square() / (mean_square * state.n_blocks)[:, None]
    logs = ratios.sum(1).log()
    return replace(
        state,
        exponent=exponent,
        rows=state.rows + len(rows),
        channel_sums=state.channel_sums + channel_sums,
        channel_absmax=torch.maximum(state.channel_absmax, magnitude.amax(0).double()),
        position_rows=state.position_rows.index_add(0, positions, torch.ones_like(positions)),
        position_sums=state.position_sums.index_add(1, positions, row_sums * weights),
        position_absmax=state.position_absmax.scatter_reduce(0, positions, row_absmax, "amax"),
        ratio_sums=state.ratio_sums + ratios.sum(0),
        ratio_products=state.ratio_products + ratios.T @ ratios,
        log_sums=state.log_sums + torch.stack([logs.sum(), logs.square().sum()]),
        exponents=state.exponents + exponent_counts(rows),
        top=larger_entries(state.top, top_of_rows(rows, row_absmax, tokens, state.top)),
    )


def _in_units_of(state: Statistics, exponent: "torch.Tensor") -> Statistics:
    import torch

    powers = torch.arange(1, POWERS + 1, device=exponent.device)
    factor = power_of_two(powers * (state.exponent - exponent))[:, None]
    return replace(
        state,
        exponent=exponent,
        channel_sums=state.channel_sums * factor,
        position_sums=state.position_sums * factor,
    )


def _check_shapes(
    state: Statistics,
    rows: "torch.Tensor",
    positions: "torch.Tensor",
    tokens: "torch.Tensor | None",
) -> None:
    if rows.ndim != 2 or rows.shape[1] != state.hidden_size:
        raise ValueError(f"rows must be [n, {state.hidden_size}], got {list(rows.shape)}")
    for name, one in (("positions", positions), ("tokens", tokens)):
        if one is not None and one.shape != rows.shape[:1]:
            raise ValueError(f"{name} must be [{len(rows)}], got {list(one.shape)}")
