"""Monte Carlo with standard errors: what the theory says, seen in random rows."""

from mxstats.simulation.accumulators import Moments
from mxstats.simulation.simulate import simulate
from mxstats.simulation.tables import compare

__all__ = ["Moments", "compare", "simulate"]
