"""Number formats as values, and the reference quantiser: the specification of every kernel."""

from mxstats.formats.blocks import (
    FORMATS,
    MXFP4_E2M1,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    MXINT8,
    NVFP4,
    BlockFormat,
    block_format,
)
from mxstats.formats.elements import E2M1, E2M3, E3M2, E4M3, E5M2, INT8, ElementFormat
from mxstats.formats.layout import from_blocked, to_blocked
from mxstats.formats.packing import pack, unpack
from mxstats.formats.reference import Quantized, quantize
from mxstats.formats.scales import E4M3_SCALE, E5M3_SCALE, E8M0, ScaleFormat, ScaleRule
from mxstats.formats.statistics import QuantizationError, quantization_error

__all__ = [
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E4M3_SCALE",
    "E5M2",
    "E5M3_SCALE",
    "E8M0",
    "FORMATS",
    "INT8",
    "MXFP4_E2M1",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "MXINT8",
    "NVFP4",
    "BlockFormat",
    "ElementFormat",
    "QuantizationError",
    "Quantized",
    "ScaleFormat",
    "ScaleRule",
    "block_format",
    "from_blocked",
    "pack",
    "quantization_error",
    "quantize",
    "to_blocked",
    "unpack",
]
