"""``mxstats formats``: the number formats that are known by name."""

import math
from typing import TYPE_CHECKING, Any

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mxstats.formats import BlockFormat


def run(json: options.Json = False) -> None:
    """All known formats: bits an element with its share of the scale, range, scale rule."""
    from mxstats.formats import FORMATS, ScaleRule

    if json:
        print_json([_record(fmt, list(ScaleRule)) for fmt in FORMATS.values()])
        return
    lines = [
        {
            "format": fmt.name,
            "bits": fmt.bits_per_element,
            "element": fmt.element.name,
            "block": fmt.block_size,
            "scale": fmt.scale.name + ("·g" if fmt.tensor_scale else ""),
            "largest": fmt.element.largest,
            "normal": _power(fmt.element.smallest_normal),
            "subnormal": "–" if fmt.element.is_fixed_point else _power(fmt.element.smallest),
            "rule": ScaleRule.FLOOR.value if fmt.scale.is_power_of_two else "none",
        }
        for fmt in FORMATS.values()
    ]
    how = {"format": "", "bits": "g", "element": "", "block": "d", "scale": "", "largest": ".8g",
           "normal": ">", "subnormal": ">", "rule": ""}  # fmt: skip
    print_table(lines, how, title="Block formats")
    print("bits: stored an element, with its share of the block's scale.")
    print("largest, normal, subnormal: the largest element, the smallest normal one (of")
    print("MXINT8, a fixed-point format, its step), the smallest of all; times the scale.")
    print(f"rule: of an E8M0 scale, by --scale-rule {', '.join(ScaleRule)}; OCP's floor")
    print("when not given. A floating scale has none: it is absmax/largest, rounded.")
    print("g: one float32 scale for the whole tensor.")


def _record(fmt: "BlockFormat", rules: list[Any]) -> dict[str, Any]:
    element, power_of_two = fmt.element, fmt.scale.is_power_of_two
    return {
        "format": fmt.name,
        "bits_per_element": fmt.bits_per_element,
        "element": element.name,
        "element_bits": element.bits,
        "block_size": fmt.block_size,
        "scale": fmt.scale.name,
        "tensor_scale": fmt.tensor_scale,
        "largest": element.largest,
        "smallest_normal": element.smallest_normal,
        "smallest_subnormal": None if element.is_fixed_point else element.smallest,
        "default_scale_rule": rules[0].value if power_of_two else None,
        "scale_rules": [rule.value for rule in rules] if power_of_two else [],
    }


def _power(value: float) -> str:
    """A power of two as such."""
    return f"2^{int(math.log2(value))}"
