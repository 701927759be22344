"""The byte table, with zero tolerance, through the rule alone and through the whole quantiser."""

import ml_dtypes
import numpy as np
import pytest

from mxstats import formats
from mxstats.formats.scales import ScaleRule, e8m0_bytes
from tests.formats.byte_table import CASES, RULES
from tests.formats.inputs import MX

ELEMENTS = ("E4M3", "E5M2", "E3M2", "E2M3", "E2M1", "INT8")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("element", ELEMENTS)
def test_bytes_are_those_of_the_table(element, rule):
    cases = [case for case in CASES if case.element == element]
    absmax = np.array([case.bits for case in cases], dtype=np.uint32).view(np.float32)
    found = e8m0_bytes(absmax, getattr(formats, element), ScaleRule(rule))
    wanted = [case.bytes[RULES.index(rule)] for case in cases]
    assert dict(zip([c.absmax for c in cases], found.tolist(), strict=True)) == dict(
        zip([c.absmax for c in cases], wanted, strict=True)
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fmt", MX, ids=lambda fmt: fmt.name)
def test_quantised_blocks_have_the_bytes_of_the_table(fmt, rule):
    cases = [case for case in CASES if case.element == fmt.element.name]
    absmax = np.array([case.bits for case in cases], dtype=np.uint32).view(np.float32)
    wanted = np.array([case.bytes[RULES.index(rule)] for case in cases])
    for sign in (1, -1):
        blocks = np.zeros((len(cases), 32), dtype=np.float32)
        blocks[:, 17] = sign * absmax
        assert np.array_equal(formats.quantize(blocks, fmt, scale_rule=rule).scales[:, 0], wanted)
        # A float32 in float64 is the same number; so is a bfloat16 in float32.
        wide = formats.quantize(blocks.astype(np.float64), fmt, scale_rule=rule)
        assert np.array_equal(wide.scales[:, 0], wanted)
    held = absmax.astype(ml_dtypes.bfloat16).astype(np.float32)
    narrow = np.isnan(absmax) | (held == absmax)
    blocks = held[narrow].astype(ml_dtypes.bfloat16)[:, None]
    found = formats.quantize(blocks, fmt, scale_rule=rule).scales[:, 0]
    assert narrow.sum() > 10
    assert np.array_equal(found, wanted[narrow])


def test_the_table_is_whole():
    # Every element has the absmax values that tell the rules apart, and every special.
    for element in ELEMENTS:
        cases = [case for case in CASES if case.element == element]
        assert len(cases) >= 25
        assert {"0", "2^-149", "2^-126", "448", "FLT_MAX", "Inf", "NaN"} <= {
            case.absmax for case in cases
        }
        assert len({case.bits for case in cases}) == len(cases)
