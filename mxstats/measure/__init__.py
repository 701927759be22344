"""Measurements on rows of real activations: the estimate, what explains it, the bounds."""

from mxstats.measure.calibration import FormatCalibration, calibrate
from mxstats.measure.rows import RowMeasures, measure_rows
from mxstats.measure.validation import validate

__all__ = ["FormatCalibration", "RowMeasures", "calibrate", "measure_rows", "validate"]
