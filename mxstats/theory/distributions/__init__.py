"""Distributions of the entries of a row: the named families, scipy's, and samples."""

from typing import Any

import numpy as np

from mxstats.theory.distributions.families import Distribution, Gaussian, Laplace, StudentT
from mxstats.theory.distributions.samples import Estimate, Samples
from mxstats.theory.distributions.scipy_backed import ScipyDistribution, from_scipy

__all__ = [
    "Distribution",
    "Estimate",
    "Gaussian",
    "Laplace",
    "Samples",
    "ScipyDistribution",
    "StudentT",
    "distribution",
]

KNOWN_NAMES = ("gaussian", "laplace", "student-t:DF")


def distribution(obj: Any) -> Distribution | Samples:
    """Make ``obj`` a distribution of the entries of a row.

    Parameters
    ----------
    obj
        A name (``"gaussian"``, ``"laplace"``, ``"student-t:5"``), one of our distributions, a
        frozen ``scipy.stats`` distribution, a new-style scipy distribution, or an array of samples,
        which stands for its empirical distribution.

    Returns
    -------
    Distribution or Samples
        A frozen value. Scale does not matter: everything computed from it is at rms = 1.

    Raises
    ------
    ValueError
        Unknown name, Student-t with df <= 2, an infinite RMS, samples that are not finite.
    TypeError
        Anything else, discrete distributions among them.
    """
    if isinstance(obj, str):
        return _by_name(obj)
    if isinstance(obj, Samples) or (not isinstance(obj, type) and isinstance(obj, Distribution)):
        return obj
    wrapped = None if isinstance(obj, type) else from_scipy(obj)
    if wrapped is not None:
        return wrapped
    if isinstance(obj, (np.ndarray, list, tuple)):
        try:
            return Samples(obj if isinstance(obj, np.ndarray) else np.asarray(obj))
        except ValueError as error:
            if "inhomogeneous" not in str(error):
                raise
            raise TypeError("samples must be a rectangular array of real numbers") from None
    raise TypeError(
        f"distribution must be a name ({', '.join(KNOWN_NAMES)}), a distribution of mxstats or of "
        f"scipy.stats (frozen), or an array of samples; got {obj!r}"
    )


def _by_name(text: str) -> Distribution:
    name, colon, parameter = text.strip().lower().partition(":")
    if name == "student-t" and colon:
        try:
            df = float(parameter)
        except ValueError:
            raise ValueError(
                f"distribution {text!r}: {parameter!r} is no number of degrees of freedom; "
                f"write student-t:5"
            ) from None
        return StudentT(df)
    if name == "student-t":
        raise ValueError(f"distribution {text!r}: give the degrees of freedom, as in student-t:5")
    if name == "gaussian" and not colon:
        return Gaussian()
    if name == "laplace" and not colon:
        return Laplace()
    raise ValueError(f"distribution {text!r} is unknown; known are {', '.join(KNOWN_NAMES)}")
