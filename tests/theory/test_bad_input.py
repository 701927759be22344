"""What is refused, and that the message names the argument, its value and what would be right."""

import numpy as np
import pytest
from scipy import stats

import mxstats as mxs
from mxstats.theory import constant_asymptotic, log_ratio_std

NOT_A_DISTRIBUTION = r"distribution must be a name \(gaussian, laplace, student-t:DF\)"

ARGUMENTS = {
    # p
    "p zero": ({"p": 0}, ValueError, r"p=0: p must be a finite real number above 0"),
    "p negative": ({"p": -1.5}, ValueError, r"p=-1\.5: .* above 0"),
    "p nan": ({"p": np.nan}, ValueError, r"p=nan: .* finite real number above 0"),
    "p inf": ({"p": np.inf}, ValueError, r"p=inf: .* finite real number above 0"),
    "p one of several": ({"p": [1.0, -2.0]}, ValueError, r"p=-2: "),
    "p bool": ({"p": True}, TypeError, r"p must be a real number above 0, got True"),
    "p text": ({"p": "2"}, TypeError, r"p must be a real number above 0, got '2'"),
    "p complex": ({"p": 1j}, TypeError, r"p must be a real number above 0, got 1j"),
    "p None": ({"p": None}, TypeError, r"p must be a real number above 0, got None"),
    "p empty": ({"p": []}, TypeError, r"p must be a real number above 0, got \[\]"),
    "p ragged": ({"p": [[1], [1, 2]]}, TypeError, r"p must be .* rectangular .* got \[\[1\]"),
    # block_size
    "block_size zero": ({"block_size": 0}, ValueError, r"block_size=0: must be from 1 to 1048576"),
    "block_size negative": ({"block_size": -32}, ValueError, r"block_size=-32: must be from 1"),
    "block_size 2^21": ({"block_size": 2**21}, ValueError, r"block_size=2097152: .*\(2\^20\)"),
    "block_size 2^63": ({"block_size": 2**63}, ValueError, r"block_size=9223372036854775808: "),
    "block_size 2^70": (
        {"block_size": 2**70},
        TypeError,
        r"block_size must be an integer, got one beyond 64 bits",
    ),
    "block_size 2.5": ({"block_size": 2.5}, TypeError, r"block_size must be an integer, got 2\.5"),
    "block_size 32.0": ({"block_size": 32.0}, TypeError, r"must be an integer, got 32\.0"),
    "block_size bool": ({"block_size": True}, TypeError, r"must be an integer, got True"),
    "block_size text": ({"block_size": "32"}, TypeError, r"must be an integer, got '32'"),
    "block_size empty": ({"block_size": []}, TypeError, r"block_size must be an integer, got \[\]"),
    "block_size nan": ({"block_size": np.nan}, TypeError, r"must be an integer, got nan"),
}
HIDDEN_SIZES = {
    "hidden_size zero": ({"hidden_size": 0}, ValueError, r"hidden_size=0: must be at least 1"),
    "hidden_size negative": (
        {"hidden_size": -1},
        ValueError,
        r"hidden_size=-1: must be at least 1",
    ),
    "hidden_size 2.5": (
        {"hidden_size": 2.5},
        TypeError,
        r"hidden_size must be an integer, got 2\.5",
    ),
    "hidden_size bool": ({"hidden_size": False}, TypeError, r"must be an integer, got False"),
    "hidden_size empty": ({"hidden_size": []}, TypeError, r"hidden_size must be an integer"),
}
# Everything that takes these arguments; those that need a hidden_size with one.
CALLS = {
    "constant": mxs.constant,
    "rms_error": mxs.rms_error,
    "block_moments": lambda dist="gaussian", p=2.0, block_size=32: mxs.block_moments(
        dist, p=p, block_size=block_size
    ),
    "constant_asymptotic": constant_asymptotic,
    "log_ratio_std": lambda *a, **k: log_ratio_std(*a, **({"hidden_size": 100} | k)),
    "output_bounds": lambda *a, **k: mxs.output_bounds(*a, **({"hidden_size": 100} | k)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", ARGUMENTS)
def test_p_and_block_size(call, case):
    given, error, message = ARGUMENTS[case]
    with pytest.raises(error, match=message):
        CALLS[call](**given)


@pytest.mark.parametrize("call", ["constant", "log_ratio_std", "output_bounds"])
@pytest.mark.parametrize("case", HIDDEN_SIZES)
def test_hidden_size(call, case):
    given, error, message = HIDDEN_SIZES[case]
    with pytest.raises(error, match=message):
        CALLS[call](**given)


@pytest.mark.parametrize("name", ["p", "block_size", "hidden_size"])
def test_bounds_are_for_one_shape(name):
    with pytest.raises(TypeError, match=rf"{name} must be one number, got \[1"):
        mxs.output_bounds(**({"hidden_size": 64} | {name: [1, 2]}))  # pyright: ignore[reportArgumentType]


def test_bounds_beyond_double_precision_and_unknown_witness():
    with pytest.raises(ValueError, match=r"p=0\.001: K\^\(1/p\) is beyond double precision"):
        mxs.output_bounds(p=0.001, hidden_size=4096)
    bounds = mxs.output_bounds(hidden_size=4096)
    with pytest.raises(ValueError, match=r"which='rms': must be one of max_abs, rms_low, rms_high"):
        bounds.witness("rms")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("count", [0, -3])
def test_a_row_has_at_least_one_block(count):
    with pytest.raises(ValueError, match=rf"n_blocks={count}: must be at least 1"):
        mxs.rms_error().std(count)
    with pytest.raises(TypeError, match=r"n_blocks must be an integer, got 1\.5"):
        mxs.rms_error().std(1.5)


@pytest.mark.parametrize(
    ("name", "p", "message"),
    [
        ("student-t:3", 3, r"p=3: E\[m\^p\] is infinite for student-t:3; p must be below 3"),
        (
            "student-t:2.5",
            8,
            r"p=8: E\[m\^p\] is infinite for student-t:2\.5; p must be below 2\.5",
        ),
        (stats.t(5), 5.5, r"p=5\.5: E\[m\^p\] is infinite for scipy\.t\(5\); p must be below 5"),
        (stats.pareto(4), 4.1, r"p=4\.1: E\[m\^p\] is infinite .* must be below 4"),
    ],
    ids=["student-t:3", "student-t:2.5", "scipy t", "pareto"],
)
@pytest.mark.parametrize("call", CALLS)
def test_infinite_moments(call, name, p, message):
    with pytest.raises(ValueError, match=message):
        CALLS[call](name, p=p)


UNKNOWN = r"distribution '{}' is unknown; known are gaussian, laplace, student-t:DF"
INFINITE_RMS = r"needs 2 < df < inf; for df <= 2 the RMS is infinite"
OUT_OF_RANGE = r"its quartiles are not two finite numbers"
DISTRIBUTIONS = {
    "unknown name": ("cauchy", ValueError, UNKNOWN.format("cauchy")),
    "empty name": ("", ValueError, UNKNOWN.format("")),
    "gaussian with a parameter": ("gaussian:1", ValueError, UNKNOWN.format("gaussian:1")),
    "t without df": ("student-t", ValueError, r"'student-t': give .* as in student-t:5"),
    "t with empty df": ("student-t:", ValueError, r"'student-t:': '' is no number .* student-t:5"),
    "t with text": ("student-t:abc", ValueError, r"'student-t:abc': 'abc' is no number of degrees"),
    "t with two": ("student-t:5:6", ValueError, r"'5:6' is no number of degrees of freedom"),
    "t(2)": ("student-t:2", ValueError, rf"df=2: Student-t {INFINITE_RMS}"),
    "t(1.5)": ("student-t:1.5", ValueError, rf"df=1\.5: Student-t {INFINITE_RMS}"),
    "t(nan)": ("student-t:nan", ValueError, r"df=nan: Student-t needs 2 < df < inf"),
    "t(inf)": ("student-t:inf", ValueError, r"df=inf: Student-t needs 2 < df < inf"),
    "scipy t(2)": (stats.t(2), ValueError, r"scipy\.t\(2\): its RMS is infinite \(tail index 2;"),
    "scipy cauchy": (
        stats.cauchy(),
        ValueError,
        r"scipy\.cauchy\(\): its RMS is infinite .*more than 2",
    ),
    "scipy levy": (stats.levy(), ValueError, r"its RMS is infinite \(tail index 0\.5;"),
    "scipy pareto(2)": (stats.pareto(2), ValueError, r"scipy\.pareto\(2\): its RMS is infinite"),
    "scipy scale -1": (stats.norm(scale=-1), ValueError, rf"norm\(scale=-1\): {OUT_OF_RANGE}"),
    "scipy t(-1)": (stats.t(-1), ValueError, OUT_OF_RANGE),
    "scipy discrete": (
        stats.poisson(3),
        TypeError,
        r"must be continuous, got the discrete poisson",
    ),
    "new-style discrete": (
        stats.Binomial(n=3, p=0.5),
        TypeError,
        r"must be continuous, got the discrete Binomial",
    ),
    "scipy not frozen": (stats.norm, TypeError, NOT_A_DISTRIBUTION),
    "scipy array": (
        stats.norm([0, 1]),
        TypeError,
        r"must have scalar parameters, got \(\[0, 1\],\)",
    ),
    "new-style array": (
        stats.Normal(mu=np.array([0.0, 1.0])),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"must have scalar parameters, got Normal",
    ),
    "new-style class": (stats.Normal, TypeError, NOT_A_DISTRIBUTION),
    "our class": (mxs.Gaussian, TypeError, NOT_A_DISTRIBUTION),
    "our class with df": (mxs.StudentT, TypeError, rf"{NOT_A_DISTRIBUTION}.*StudentT"),
    "None": (None, TypeError, rf"{NOT_A_DISTRIBUTION}.*got None"),
    "number": (5.0, TypeError, rf"{NOT_A_DISTRIBUTION}.*got 5\.0"),
    "dict": ({}, TypeError, rf"{NOT_A_DISTRIBUTION}.*got \{{\}}"),
    "samples with nan": (
        [*[1.0] * 4000, np.nan],
        ValueError,
        r"samples: 1 of 4001 values are NaN or infinite",
    ),
    "samples with inf": (
        [*[1.0] * 4000, -np.inf, np.inf],
        ValueError,
        r"samples: 2 of 4002 values are NaN or infinite",
    ),
    "samples all zero": (
        np.zeros(5000),
        ValueError,
        r"samples: all values are zero, so .* RMS is 0",
    ),
    "samples too few": (np.ones(50), ValueError, r"samples: 50 values; at least 100"),
    "samples too few for the block": (
        np.ones(3000),
        ValueError,
        r"samples: 3000 values are too few for block_size=32; at least 3200",
    ),
    "samples empty": ([], ValueError, r"samples: 0 values; at least 100"),
    "samples complex": (np.ones(5000, complex), TypeError, r"samples must be real.*complex128"),
    "samples text": (
        np.array(["a"] * 5000),
        TypeError,
        r"samples must be real numbers, got dtype <U1",
    ),
    "samples bool": (
        np.ones(5000, bool),
        TypeError,
        r"samples must be real numbers, got dtype bool",
    ),
    "samples ragged": ([[1.0, 2.0], [3.0]], TypeError, r"samples must be .*rectangular"),
}


# Parameters out of range make scipy's own support compute inf·nan.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("case", DISTRIBUTIONS)
@pytest.mark.parametrize("call", [name for name in CALLS if name != "constant_asymptotic"])
def test_distributions(call, case):
    dist, error, message = DISTRIBUTIONS[case]
    with pytest.raises(error, match=message):
        CALLS[call](dist)


@pytest.mark.parametrize("df", [True, "5", None, 1j, [5.0]], ids=repr)
def test_student_t_takes_a_real_number(df):
    with pytest.raises(TypeError, match=r"df must be a real number above 2, got"):
        mxs.StudentT(df)


def test_asymptotic_form_where_there_is_none():
    with pytest.raises(TypeError, match="samples have no asymptotic form"):
        constant_asymptotic(np.ones(5000))
    with pytest.raises(ValueError, match=r"block_size=1: .* at least 2"):
        constant_asymptotic(block_size=[1, 32])
    with pytest.raises(ValueError, match=r"scipy\.uniform\(-1, 2\) is bounded"):
        constant_asymptotic(stats.uniform(-1, 2))


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"broadcast"):
        mxs.constant(p=[1.0, 2.0], block_size=[1, 2, 3])


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        mxs.StudentT(5.0).df = 3.0  # pyright: ignore[reportAttributeAccessIssue]
    assert mxs.StudentT(5) == mxs.distribution("student-t:5")
    assert hash(mxs.Gaussian()) == hash(mxs.distribution("gaussian"))
    data = np.ones(200)
    frozen = mxs.distribution(data)
    with pytest.raises(ValueError, match="read-only"):
        frozen.values[0] = 2.0  # pyright: ignore
    data[0] = 2.0  # the caller's array is neither locked nor shared
    assert frozen.values[0] == 1.0  # pyright: ignore
