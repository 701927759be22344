"""The casts of :mod:`mxstats.formats` inside Triton kernels, equal to it bit for bit.

Small functions over tiles of any shape: a block's absmax, its scale, the elements' codes. ``SPEC``
is a :class:`~mxstats.kernels.spec.CastSpec`. Everything is float32 or integers, and no result
depends on whether a product and a sum are fused: where both meet, the product is exact.
"""

# In a kernel a constexpr is the value it holds, which pyright cannot know.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from mxstats.kernels import spec as _spec

_FLOOR = tl.constexpr(_spec.FLOOR)
_CEIL = tl.constexpr(_spec.CEIL)
_EVEN = tl.constexpr(_spec.EVEN)
_INFINITY = tl.constexpr(0x7F800000)
# Added to a float32 of magnitude below 2^22, it leaves the nearest integer in the lowest bits.
_INTEGER_ANCHOR = tl.constexpr(1.5 * 2.0**23)
_INTEGER_ANCHOR_BITS = tl.constexpr(0x4B400000)


@triton.jit
def to_float32(x):
    """The float32 of a bf16, fp16 or fp32 tile, exactly."""
    if x.dtype == tl.bfloat16:
        # By its bits: the interpreter's own conversion is wrong for subnormals.
        wide = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def round_to(x, dtype: tl.constexpr, HARDWARE: tl.constexpr):
    """A float32 tile as bf16, fp16 or fp32, rounded to nearest, ties to even."""
    if dtype == tl.bfloat16 and not HARDWARE:
        # The interpreter's own conversion truncates.
        bits = x.to(tl.int32, bitcast=True)
        half = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        half = tl.where((bits & 0x7FFFFFFF) > _INFINITY, 0x7FC0, half)
        rounded = half.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        rounded = x.to(dtype)
    return rounded


@triton.jit
def absmax_bits(x, axis: tl.constexpr):
    """Bits (int32) of the float32 max |x| along an axis of a bf16, fp16 or fp32 tile.

    An integer maximum, because a NaN has the largest bits of all and so is kept: ``tl.max`` of
    floats drops it.
    """
    if x.dtype == tl.float32:
        bits = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis)
    else:
        half = tl.max(x.to(tl.int16, bitcast=True).to(tl.int32) & 0x7FFF, axis)
        if x.dtype == tl.bfloat16:
            bits = half << 16
        else:
            wide = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            bits = wide.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return bits


@triton.jit
def scale_code(absmax, tensor_scale, SPEC: tl.constexpr, NEAR: tl.constexpr = False):  # pyright: ignore[reportArgumentType]
    """Code (int32) of the scale of blocks with this float32 absmax.

    Byte s of 2^(s−127) by the rule, or of a floating scale the code of (absmax/largest)/g rounded
    to nearest even, no smaller than the smallest normal. The NaN code where absmax is not finite,
    and only there: what is above the largest scale saturates, for a kernel cannot raise.
    ``tensor_scale`` is g, a float32 scalar, looked at only by a format that has one. ``NEAR``: on
    hardware, with g so far from float32's ends that a quotient which underflows is below the
    smallest scale.
    """
    bits = absmax.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if SPEC.is_floating_scale:
        largest = tl.full((), SPEC.largest, tl.float32)
        ratio = _quotient(absmax, largest, NEAR)
        if SPEC.has_tensor_scale:
            ratio = _quotient(ratio, tl.full((), 1.0, tl.float32) * tensor_scale, NEAR)
        # The bits of positive floats are in their order.
        wanted = tl.maximum(ratio.to(tl.int32, bitcast=True), (128 - SPEC.scale_bias) << 23)
        code = _rounded_code(wanted, SPEC.scale_mantissa_bits, SPEC.scale_bias)
        code = tl.minimum(code, SPEC.scale_nan - 1)
    else:
        if SPEC.rule == _FLOOR:
            code = (bits >> 23) - SPEC.emax
        elif SPEC.rule == _CEIL:
            code = ((bits + 0x7FFFFF) >> 23) - SPEC.emax
        elif SPEC.rule == _EVEN:
            code = ((bits + (1 << (22 - SPEC.mantissa_bits))) >> 23) - SPEC.emax
        else:
            ratio = tl.div_rn(absmax, tl.full(absmax.shape, SPEC.largest, tl.float32))
            ratio_bits = ratio.to(tl.int32, bitcast=True)
            # Byte 0 is 2^−127, the subnormal 0x400000: only above it a subnormal needs byte 1.
            code = (ratio_bits + tl.where(ratio_bits < 0x800000, 0x3FFFFF, 0x7FFFFF)) >> 23
        code = tl.maximum(code, 0)
        # Elements that reach 2 spare the steps for zeros, which are at 0, and for the top.
        if SPEC.emax < 1:
            code = tl.where(bits == 0, 0, tl.minimum(code, 254))
    return tl.where(bits >= _INFINITY, SPEC.scale_nan, code)


@triton.jit
def _quotient(x, divisor, NEAR: tl.constexpr):
    """x/divisor, a scalar, rounded as by IEEE; with NEAR in three instructions, see _divide."""
    if NEAR:
        r = tl.div_rn(tl.full((), 1.0, tl.float32), divisor)
        q = x * r
        quotient = tl.fma(tl.fma(q, -divisor, x), r, q)
    else:
        quotient = tl.div_rn(x, tl.zeros(x.shape, tl.float32) + divisor)
    return quotient


@triton.jit
def inverse_scale(byte):
    """The float32 2^(127−s) of an E8M0 byte s, exactly; NaN for 255."""
    # 2^−127, of s = 254, is subnormal: its exponent field, 0, is not enough.
    bits = tl.where(byte == 254, 0x00400000, (254 - byte) << 23)
    return tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def floating_scale(code, SPEC: tl.constexpr):
    """The float32 value of a floating scale's code, at least the smallest normal; not of NaN's."""
    shift: tl.constexpr = 23 - SPEC.scale_mantissa_bits
    bits = (code << shift) + ((127 - SPEC.scale_bias) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def encode(v, SPEC: tl.constexpr, HARDWARE: tl.constexpr):
    """Codes (uint8) of a finite float32 tile: nearest, ties to even, saturating; −0 keeps its sign.

    With ``HARDWARE`` the instruction that converts to E4M3 and E5M2, and saturates, does it for the
    formats that have one (sm_89 and newer), elsewhere integers do.
    """
    if HARDWARE and SPEC.has_hardware_cast:
        code = _encode_by_hardware(v, SPEC)
    else:
        code = _encode_by_integers(v, v, SPEC).to(tl.uint8)
    return code


@triton.jit
def _encode_by_hardware(v, SPEC: tl.constexpr):
    if SPEC.mantissa_bits == 3:
        code = v.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        code = v.to(tl.float8e5).to(tl.uint8, bitcast=True)
    return code


@triton.jit
def _encode_by_integers(v, signed, SPEC: tl.constexpr):
    """Codes in the low byte (int32).

    ``signed`` has the sign of v, which v itself need not have where it is 0.
    """
    if SPEC.is_fixed_point:
        code = _encode_fixed_point(v, SPEC)
    elif SPEC.is_rounded_by_adder:
        code = _encode_by_adder(v, signed, SPEC.largest, 1 << (SPEC.bits - 1), SPEC)
    else:
        code = _encode_by_bits(v, signed, SPEC)
    return code


@triton.jit
def _encode_fixed_point(v, SPEC: tl.constexpr):
    steps = v * (2.0**SPEC.mantissa_bits)
    steps = tl.minimum(tl.maximum(steps, -SPEC.top_code), SPEC.top_code)
    code = (steps + _INTEGER_ANCHOR).to(tl.int32, bitcast=True) - _INTEGER_ANCHOR_BITS
    return code & ((1 << SPEC.bits) - 1)


@triton.jit
def _encode_by_adder(v, signed, top, sign, SPEC: tl.constexpr):
    """The adder rounds, to the last place of a sum that is made that of the element's binade.

    ``top``, the largest magnitude, and ``sign``, the bit for one, are a block's.
    """
    magnitude = tl.minimum(tl.abs(v), top)
    # Bits of the binade's power of two, that of the smallest normal for what is below it.
    first: tl.constexpr = SPEC.emin + 127
    binade = tl.maximum(magnitude.to(tl.int32, bitcast=True) & 0x7F800000, first << 23)
    # The sum's bits count steps from the anchor, a power of two and some even number of steps, so
    # that ties go as they should: what has to be taken off a code modulo 256.
    steps: tl.constexpr = -(first << SPEC.mantissa_bits) % 256
    anchor = binade + (((23 - SPEC.mantissa_bits) << 23) + steps)
    code = (magnitude + anchor.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
    return (code + (binade >> (23 - SPEC.mantissa_bits))) | _sign(signed, sign, SPEC)


@triton.jit
def _sign(v, mask, SPEC: tl.constexpr):
    """The sign bit in its place in a code, as far as the mask lets it through."""
    return (v.to(tl.int32, bitcast=True) >> (32 - SPEC.bits)) & mask


@triton.jit
def _encode_by_bits(v, signed, SPEC: tl.constexpr):
    """For formats without mantissa bits, whose even code no adder knows, or near 2^127."""
    magnitude = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    # The adder rounds to the spacing of the subnormals, the last place of this sum.
    anchor_bits: tl.constexpr = (SPEC.emin - SPEC.mantissa_bits + 23 + 127) << 23
    below = magnitude.to(tl.float32, bitcast=True) + SPEC.smallest * 2.0**23
    below = below.to(tl.int32, bitcast=True) - anchor_bits
    normal = _rounded_code(magnitude, SPEC.mantissa_bits, SPEC.bias)
    code = tl.where(magnitude < ((SPEC.emin + 127) << 23), below, normal)
    return tl.minimum(code, SPEC.top_code) | _sign(signed, 1 << (SPEC.bits - 1), SPEC)


@triton.jit
def encode_blocks(
    y, code, tensor_scale, axis: tl.constexpr, SPEC: tl.constexpr, HARDWARE: tl.constexpr,
    NEAR: tl.constexpr,
):  # fmt: skip
    """Codes (uint8) of y (float32), whose blocks along ``axis`` have scales with these codes.

    fl32(y·2^(127−s)), or y/fl32(s·g) for a floating scale, encoded; 0 in a block whose scale is
    NaN. ``NEAR``: y and s·g are between 2^−90 and 2^90 wherever they are not 0.
    """
    if SPEC.is_floating_scale:
        divisor = floating_scale(code, SPEC)
        if SPEC.has_tensor_scale:
            divisor *= tensor_scale
        v = _divide(y, divisor, axis, SPEC, NEAR, HARDWARE)
    elif SPEC.emax > 1:
        # Then no byte is 254, and what is made of a dead block here is not looked at.
        v = y * tl.expand_dims(((254 - code) << 23).to(tl.float32, bitcast=True), axis)
    else:
        v = y * tl.expand_dims(inverse_scale(code), axis)
    dead = tl.expand_dims(code, axis) == SPEC.scale_nan
    # In float32 or int32: a choice among bytes would undo how they are packed.
    if HARDWARE and SPEC.has_hardware_cast:
        if SPEC.is_floating_scale:
            v = _with_sign_of(v, y)
        codes = _encode_by_hardware(tl.where(dead, 0.0, v), SPEC)
    elif HARDWARE and SPEC.is_rounded_by_adder:
        # What is chosen for a block is not chosen for each element: of a NaN and 0 the hardware
        # takes 0 for the smaller. The interpreter does not.
        top = tl.where(dead, 0.0, SPEC.largest)
        sign = tl.where(dead, 0, 1 << (SPEC.bits - 1))
        codes = _encode_by_adder(v, y, top, sign, SPEC).to(tl.uint8)
    else:
        codes = tl.where(dead, 0, _encode_by_integers(v, y, SPEC)).to(tl.uint8)
    return codes


@triton.jit
def _with_sign_of(v, y):
    bits = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bits |= y.to(tl.int32, bitcast=True) & -2147483648
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _divide(
    y, divisor, axis: tl.constexpr, SPEC: tl.constexpr, NEAR: tl.constexpr, HARDWARE: tl.constexpr
):
    """y/divisor as IEEE division rounds it wherever that decides a code; −0 may become 0.

    Markstein: with r = fl(1/d), q = fl(y·r) and the exact remainder e = y − q·d, fl(q + e·r) is the
    rounded quotient unless something underflows or overflows: one division a block and three
    instructions an element. With ``NEAR`` the caller knows d and y to be far from that. Else a
    power of two brings d to [1, 2) ([2^−22, 2) where it is subnormal), so that only a y far below
    any element underflows, and y is held below a bound far above.
    """
    if HARDWARE:
        if NEAR:
            v, d = y, divisor
        else:
            power = inverse_scale((divisor.to(tl.int32, bitcast=True) >> 23) & 0xFF)
            d = divisor * power
            v = tl.minimum(tl.maximum(y * tl.expand_dims(power, axis), -SPEC.far), SPEC.far)
        r = tl.expand_dims(_reciprocal(d), axis)
        q = v * r
        # Of q the compiler would make −q by another product.
        v = tl.fma(tl.fma(q, -tl.expand_dims(d, axis), v), r, q)
    else:
        # The interpreter's fma rounds twice.
        v = tl.div_rn(y, tl.zeros(y.shape, tl.float32) + tl.expand_dims(divisor, axis))
    return v


@triton.jit
def _reciprocal(x):
    """1/x rounded as by IEEE, for x and 1/x normal: what a division does then, without the test."""
    return tl.inline_asm_elementwise(
        "{ .reg .f32 r, e; rcp.approx.ftz.f32 r, $1; fma.rn.f32 e, $1, r, 0fBF800000; "
        "neg.f32 e, e; fma.rn.f32 $0, r, e, r; }",
        "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def store_scales(pointer, code, row, block, rows, K, mask, BLOCKED: tl.constexpr):
    """Store scale codes at (row, block) of [rows, K] scales, where ``mask`` holds.

    ``row`` and ``block`` broadcast to the shape of ``code``. With ``BLOCKED`` in the 128×4 layout
    of :mod:`mxstats.formats.layout`, whose padding receives zeros: there the mask must reach up to
    the padded shape.
    """
    inside = (row < rows) & (block < K)
    if BLOCKED:
        bounds = (row < tl.cdiv(rows, 128) * 128) & (block < tl.cdiv(K, 4) * 4)
        code = tl.where(inside, code, 0)
    else:
        bounds = inside
    tl.store(pointer + scale_offset(row, block, K, BLOCKED), code.to(tl.uint8), mask=bounds & mask)


@triton.jit
def scale_offset(row, block, K, BLOCKED: tl.constexpr):
    """Offset (int64) of the scale at (row, block) among [rows, K]."""
    row = row.to(tl.int64)
    if BLOCKED:
        tile = (row // 128) * tl.cdiv(K, 4) + block // 4
        offset = tile * 512 + (row % 32) * 16 + (row // 32 % 4) * 4 + block % 4
    else:
        offset = row * K + block
    return offset


@triton.jit
def _rounded_code(bits, MANTISSA_BITS: tl.constexpr, BIAS: tl.constexpr):
    """Code of a non-negative float32, given by its bits, rounded to a format's normal values.

    The code of a binary float rounded to m mantissa bits is its own bits, shifted with a rounding
    carry, less the difference of the biases.
    """
    shift: tl.constexpr = 23 - MANTISSA_BITS
    odd = (bits >> shift) & 1
    if MANTISSA_BITS == 0 and (127 - BIAS) % 2 == 1:
        # Without mantissa bits the last bit is the exponent's, of another parity in the code.
        odd ^= 1
    return ((bits + odd + ((1 << (shift - 1)) - 1)) >> shift) - ((127 - BIAS) << MANTISSA_BITS)
