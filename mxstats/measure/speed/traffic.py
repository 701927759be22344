"""The fewest bytes an operation moves: every input read once, every output written once.

With rows N, hidden size D, blocks K = ⌈D/B⌉, s bytes an element of x (and of γ), one byte a code
and one a scale, four for ρ̃. What a kernel reads twice, or its partial sums, is not counted: it
shows as a lower share of the copy.
"""

from dataclasses import dataclass

_RHO = 4
_WEIGHT = 4
_GAMMA_GRADIENT = 4


@dataclass(frozen=True)
class Traffic:
    """Bytes read and written."""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Bytes moved."""
        return self.read + self.written


def mxnorm(
    rows: int,
    hidden_size: int,
    *,
    itemsize: int = 2,
    block_size: int = 32,
    residual: bool = False,
    weights: bool = False,
) -> Traffic:
    """Read N·D·s, written N·(D + K + 4).

    A residual adds N·D·s to both (it is read, the sum is written); weights add 4K to what is read.
    """
    n_blocks = -(-hidden_size // block_size)
    wide = rows * hidden_size * itemsize
    return Traffic(
        wide * (1 + residual) + weights * _WEIGHT * n_blocks,
        rows * (hidden_size + n_blocks + _RHO) + residual * wide,
    )


def rmsnorm_mx(rows: int, hidden_size: int, *, itemsize: int = 2, block_size: int = 32) -> Traffic:
    """Read (N + 1)·D·s, γ included; written N·(D + K + 4)."""
    n_blocks = -(-hidden_size // block_size)
    return Traffic((rows + 1) * hidden_size * itemsize, rows * (hidden_size + n_blocks + _RHO))


def mx_cast(
    rows: int,
    hidden_size: int,
    *,
    itemsize: int = 2,
    block_size: int = 32,
    along_rows: bool = True,
    along_columns: bool = False,
) -> Traffic:
    """Read N·D·s once; written N·(D + K) for blocks along a row, (N + ⌈N/B⌉)·D along a column."""
    written = 0
    if along_rows:
        written += rows * (hidden_size + -(-hidden_size // block_size))
    if along_columns:
        written += (rows + -(-rows // block_size)) * hidden_size
    return Traffic(rows * hidden_size * itemsize, written)


def mxnorm_backward(
    rows: int, hidden_size: int, *, itemsize: int = 2, residual: bool = False
) -> Traffic:
    """Read dy, x (and the residual's gradient), N·D·s each, and ρ̃; written dx, N·D·s."""
    wide = rows * hidden_size * itemsize
    return Traffic(wide * (2 + residual) + _RHO * rows, wide)


def rmsnorm_backward(rows: int, hidden_size: int, *, itemsize: int = 2) -> Traffic:
    """Read dy, x, ρ and γ; written dx and dγ, the latter in float32."""
    wide = rows * hidden_size * itemsize
    return Traffic(
        2 * wide + _RHO * rows + hidden_size * itemsize, wide + hidden_size * _GAMMA_GRADIENT
    )
