"""A plain verdict a layer, by two thresholds that are stated."""

import math
from typing import Any

# RMSNorm's own scale is learned to a few per cent; a factor off by less is no bias to speak of.
BIAS = 0.05
# Rows that scatter up to twice as much as sampling alone: what one constant can serve.
STEADY = 2.0

HOLDS = "holds"
BIASED = "biased but steady (calibrate)"
DEPENDS = "token-dependent"


def verdict(line: dict[str, Any]) -> tuple[str, str]:
    """Return the verdict on a line of :func:`mxstats.validate` and why, in words.

    With b = mean ℓ less what theory expects of it, s = its standard deviation over rows and
    n = √(V/K) (5 % where V is infinite):

    - *holds*: |b| <= 0.05 and s <= 2n;
    - *biased but steady*: |b| > 0.05 and s <= 2n: one constant mends it;
    - *token-dependent*: s > 2n: no constant can. Why: the first token of each window, where the
      other tokens have s <= 2n; else the factor, crest or spread, that has more of the variance.
    """
    noise = line["r_std_theory"]
    limit = STEADY * (noise if math.isfinite(noise) else BIAS)
    bias = line["ln_r"] - (line["ln_r_theory"] if math.isfinite(line["ln_r_theory"]) else 0.0)
    scatter, rest = line["ln_r_std"], line["ln_r_std_rest"]
    if scatter <= limit:
        if abs(bias) <= BIAS:
            return HOLDS, f"ln R {bias:+.3f}, within ±{BIAS:g}; rows scatter by {scatter:.3f}"
        factor = math.exp(bias)
        return BIASED, f"every row is off by about a factor {factor:.2f}; scatter {scatter:.3f}"
    if rest <= limit:
        why = (
            f"the first token of each window stands apart: without it ln R is "
            f"{line['ln_r_rest']:+.3f} ± {rest:.3f}, with it {line['ln_r']:+.3f} ± {scatter:.3f}"
        )
        return DEPENDS, why
    crest, spread = line["share_crest"], line["share_spread"]
    other = 1.0 - crest - spread
    parts = {
        "crest (the shape inside the blocks)": crest,
        "spread (how unequal the blocks are)": spread,
        "the blocks' weights": other,
    }
    main = max(parts, key=lambda name: parts[name])
    return DEPENDS, (
        f"{main} changes from token to token: {shares(line)}; ln R scatters by {scatter:.3f} where "
        f"sampling gives {noise:.3f}"
    )


def shares(line: dict[str, Any]) -> str:
    """Say what part of the variance of ln R over rows each factor has; they add up to 100 %.

    One may have more than all of it, where another works against it.
    """
    crest, spread = line["share_crest"], line["share_spread"]
    if not math.isfinite(crest):
        return "ln R has no variance over rows"
    # Whole numbers, which have no −0.
    text = f"crest has {round(100 * crest)} %, spread {round(100 * spread)} %"
    other = round(100 * (1.0 - crest - spread))
    if other:
        text += f", the blocks' weights {other} %"
    return f"of the variance of ln R {text}"
