"""The cast of rows and columns that are multiplied first: W·γ and ρ̃·x, without the product stored.

The oracle multiplies in NumPy, whose float32 products are rounded once each, and asks the reference
quantiser.
"""

import numpy as np
import pytest
import torch

from mxstats import formats
from mxstats.kernels import mx_cast
from tests.kernels.cast_cases import FLOATS, case_name, normal, rows_of, to_torch
from tests.kernels.test_mx_cast import AXES, FEW, check


def factors(rows, columns, seed):
    own = np.random.default_rng(seed)
    row = np.exp(own.normal(size=rows)).astype(np.float32)
    column = (1 + own.normal(size=columns)).astype(np.float32)
    return row, column


def multiplied(x, row, column):
    y = x.astype(np.float32)
    # Rows of float32's largest numbers and of factors that are none are meant.
    with np.errstate(over="ignore", invalid="ignore"):
        if row is not None:
            y = row[:, None] * y
        return y if column is None else y * column


@pytest.mark.parametrize("which", ["row", "column", "both"])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", FEW, ids=case_name)
def test_products_are_cast_as_the_reference_casts_them(case, dtype, axis, which, backend, device):
    fmt, rule = case
    x = rows_of((40, 150), dtype, 21, dead=False)
    row, column = factors(40, 150, 22)
    row, column = None if which == "column" else row, None if which == "row" else column
    y = multiplied(x, row, column)
    made = mx_cast(
        to_torch(x, device),
        fmt=fmt,
        scale_rule=rule,
        axis=axis,
        row_factor=None if row is None else torch.tensor(row, device=device),
        column_factor=None if column is None else torch.tensor(column, device=device),
        backend=backend,
    )
    check(made, y, fmt, rule, axis)


@pytest.mark.parametrize("axis", AXES)
def test_a_factor_that_is_no_number_kills_its_blocks_alone(axis, backend, device):
    x = rows_of((64, 96), "bfloat16", 23, dead=False)
    row, column = factors(64, 96, 24)
    row[5], column[70] = np.nan, np.inf
    y = multiplied(x, row, column)
    made = mx_cast(
        to_torch(x, device),
        axis=axis,
        row_factor=torch.tensor(row, device=device),
        column_factor=torch.tensor(column, device=device),
        backend=backend,
    )
    check(made, y, formats.MXFP8_E4M3, None, axis)


def test_factors_of_rows_in_several_axes_and_of_any_stride(backend, device):
    x = normal((3, 5, 64), 25, device)
    row, column = normal((3, 10), 26, device)[:, ::2], normal((128,), 27, device)[::2]
    made = mx_cast(x, row_factor=row, column_factor=column, backend=backend)
    y = row[..., None] * x * column
    wanted = formats.quantize(y.cpu().numpy(), formats.MXFP8_E4M3)
    np.testing.assert_array_equal(made.codes.cpu().numpy(), wanted.codes)
    np.testing.assert_array_equal(made.scales.cpu().numpy(), wanted.scales)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"row_factor": torch.ones(4)}, ValueError, r"row_factor has shape \(4,\); \(3,\)"),
        ({"row_factor": torch.ones(3).half()}, TypeError, "row_factor must be a float32 tensor"),
        (
            {"column_factor": torch.ones(63)},
            ValueError,
            r"column_factor has shape \(63,\)",
        ),
        ({"column_factor": torch.ones(64).half()}, TypeError, "column_factor has dtype"),
        ({"column_factor": [1.0] * 64}, TypeError, "column_factor must be a torch tensor"),
    ],
)
def test_bad_factors(changed, error, message):
    with pytest.raises(error, match=message) as raised:
        mx_cast(torch.ones(3, 64), **changed)
    assert "\n" not in str(raised.value)
