"""Bad input: the message names the argument, its value and what would be right."""

from typing import Any

import numpy as np
import pytest

from mxstats.simulation import compare, simulate


@pytest.mark.parametrize("function", [simulate, compare])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"distribution": "cauchy"}, ValueError, "'cauchy' is unknown; known are gaussian"),
        ({"distribution": "student-t:2"}, ValueError, "df=2: .*RMS is infinite"),
        (
            {"distribution": "student-t:3", "p": 3.0},
            ValueError,
            r"p=3: E\[m\^p\] is infinite.*below 3",
        ),
        ({"distribution": 3}, TypeError, "distribution must be a name"),
        ({"distribution": np.ones(3100)}, ValueError, "3100 values are too few for block_size=32"),
        ({"p": 0.0}, ValueError, "p=0: p must be a finite real number above 0"),
        ({"p": [1.0, -2.0]}, ValueError, "p=-2: "),
        ({"p": [[1.0, 2.0]]}, TypeError, r"p must be a number or a sequence.*\[\[1.0, 2.0\]\]"),
        ({"p": "two"}, TypeError, "p must be a real number above 0, got 'two'"),
        ({"p": 1e-9}, ValueError, "p=1e-09: .*at least 1e-06"),
        ({"p": 200.0}, ValueError, "p=200: .*beyond double precision.*smaller p"),
        ({"block_size": 0}, ValueError, "block_size=0: must be from 1"),
        ({"block_size": 32.0}, TypeError, "block_size must be an integer, got 32.0"),
        ({"block_size": [16, 32]}, TypeError, r"block_size must be one number, got \[16, 32\]"),
        ({"hidden_size": 0}, ValueError, "hidden_size=0: must be at least 1"),
        ({"hidden_size": [64]}, TypeError, r"hidden_size must be one number, got \[64\]"),
        ({"hidden_size": 2**21}, ValueError, r"hidden_size=2097152: must be at most 1048576"),
        ({"rows": 0}, ValueError, "rows=0: must be at least 1"),
        ({"rows": 1e6}, TypeError, "rows must be an integer, got 1000000.0"),
        ({"rows": [10, 20]}, TypeError, r"rows must be one number, got \[10, 20\]"),
        ({"seed": -1}, ValueError, "seed=-1: must not be negative"),
        ({"seed": 1.5}, TypeError, "seed must be an integer, got 1.5"),
        ({"seed": None}, TypeError, "seed must be an integer, got None"),
        ({"seed": True}, TypeError, "seed must be an integer, got True"),
        ({"backend": "cuda"}, ValueError, "backend='cuda': must be one of auto, numpy"),
        ({"chunk_rows": 0}, ValueError, "chunk_rows=0: must be at least 1"),
        ({"chunk_rows": 2.5}, TypeError, "chunk_rows must be an integer, got 2.5"),
        ({"progress": 3}, TypeError, "progress must be a callable.*got 3"),
    ],
)
def test_refused(function, arguments, error, message):
    with pytest.raises(error, match=message):
        function(**{"rows": 10, "hidden_size": 64, **arguments})


def test_numpy_integers_are_integers():
    given: dict[str, Any] = {
        "rows": np.int64(3),
        "hidden_size": np.int32(64),
        "seed": np.int64(4),
        "chunk_rows": np.int8(2),
    }
    table = simulate(**given)
    assert (table["rows"] == 3).to_numpy().all()
