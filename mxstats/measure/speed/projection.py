"""From a measured layer to another GPU's: each group of parts scaled by its own datasheet rate.

time there = time here · (rate here / rate there), the rate being that of the matrix units in the
format of the matmuls, that of bfloat16 for attention, and the memory's bandwidth for norms, casts
and other elementwise parts. It assumes that each part reaches the same share of its peak there as
here, and the same bytes: with NVFP4 codes would take half of MXFP8's bytes, which would favour
every way of normalising alike.

Rates: NVIDIA H200 Tensor Core GPU datasheet (SXM; matrix rates are given with sparsity, dense is
half), NVIDIA Blackwell architecture technical brief and HGX B200 datasheet (B200 at 1000 W, dense).
"""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Datasheet:
    """Dense matrix rates in TFLOP/s, and memory bandwidth in TB/s."""

    bf16: float
    fp8: float
    fp4: float | None
    bandwidth: float


H200 = Datasheet(bf16=989.5, fp8=1979.0, fp4=None, bandwidth=4.8)
B200 = Datasheet(bf16=2250.0, fp8=4500.0, fp4=9000.0, bandwidth=8.0)
DATASHEETS = {"NVIDIA H200": H200, "NVIDIA B200": B200}

MEASURED, MXFP8, NVFP4 = "measured", "B200, MXFP8", "B200, NVFP4"
GROUPS = ("matmul", "attention", "elementwise", "norm")


def scales(device: str) -> dict[str, dict[str, float]]:
    """Return, for the measurement and each target, the factor of every group's time.

    Raises ValueError for a device whose datasheet is not known.
    """
    here = DATASHEETS.get(device)
    if here is None:
        raise ValueError(f"device={device!r} is unknown; known are {', '.join(DATASHEETS)}")
    memory = here.bandwidth / B200.bandwidth
    shared = {"attention": here.bf16 / B200.bf16, "elementwise": memory, "norm": memory}
    assert B200.fp4 is not None
    return {
        MEASURED: dict.fromkeys(GROUPS, 1.0),
        MXFP8: shared | {"matmul": here.fp8 / B200.fp8},
        NVFP4: shared | {"matmul": here.fp8 / B200.fp4},
    }


def project(layer: pd.DataFrame) -> pd.DataFrame:
    """Return the layer's time by target, way of normalising, and group.

    Parameters
    ----------
    layer
        The table of :func:`mxstats.measure.speed.layer.measure_layer`; of the matmuls the fp8 ones
        count.

    Returns
    -------
    DataFrame
        target, norm, group, time_us, device; ``measured`` is the sum of parts measured.
    """
    device = layer["device"].iloc[0]
    counted = layer[(layer["group"] != "matmul") | (layer["variant"] == "fp8")]
    of_layer = counted.assign(time_us=counted["time_us"] * counted["count"])
    is_norm = of_layer["group"] == "norm"
    shared = of_layer[~is_norm].groupby("group")["time_us"].sum()
    lines = []
    for target, factors in scales(device).items():
        for norm, time in of_layer[is_norm].set_index("variant")["time_us"].items():
            times = {**shared.to_dict(), "norm": time}
            lines += [
                {
                    "target": target,
                    "norm": norm,
                    "group": group,
                    "time_us": times[group] * factors[group],
                    "device": device,
                }
                for group in GROUPS
            ]
    return pd.DataFrame(lines)


def gains(projected: pd.DataFrame, to: str = "MXNorm") -> pd.DataFrame:
    """Return how much faster the layer gets when each other norm is replaced: total/total − 1.

    One line a target, one column a way of normalising.
    """
    totals = projected.pivot_table(
        index="target", columns="norm", values="time_us", aggfunc="sum", sort=False
    )
    return totals.div(totals[to], axis=0).drop(columns=to) - 1.0
