"""Measurements on rows of real activations: the estimate, what explains it, the bounds."""

from mxstats.measure.calibrated import RowCalibration, read_calibration
from mxstats.measure.calibration import calibrate
from mxstats.measure.distillation import Distilled, distil
from mxstats.measure.format_calibration import FormatCalibration
from mxstats.measure.report import write_report
from mxstats.measure.rows import RowMeasures, measure_rows
from mxstats.measure.validation import validate

__all__ = [
    "Distilled",
    "FormatCalibration",
    "RowCalibration",
    "RowMeasures",
    "calibrate",
    "distil",
    "measure_rows",
    "read_calibration",
    "validate",
    "write_report",
]
