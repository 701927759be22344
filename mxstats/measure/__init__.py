"""Measurements on rows of real activations: the estimate, what explains it, the bounds."""

from mxstats.measure.rows import RowMeasures, measure_rows
from mxstats.measure.validation import validate

__all__ = ["RowMeasures", "measure_rows", "validate"]
