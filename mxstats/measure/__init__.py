"""Measurements on rows of real activations: the estimate, what explains it, the bounds."""

from mxstats.measure.calibrated import RowCalibration
from mxstats.measure.calibration import calibrate
from mxstats.measure.format_calibration import FormatCalibration
from mxstats.measure.report import write_report
from mxstats.measure.rows import RowMeasures, measure_rows
from mxstats.measure.validation import validate

__all__ = [
    "FormatCalibration",
    "RowCalibration",
    "RowMeasures",
    "calibrate",
    "measure_rows",
    "validate",
    "write_report",
]
