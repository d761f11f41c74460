// Floats to E4M3 and back: one conversion instruction a pair from sm_89 on, else arithmetic.
//
// Both give the same for every float: nearest, ties to even, beyond 448 and infinity to 448 with
// its sign, NaN of either sign to 0x7F (PTX ISA, cvt.rn.satfinite.e4m3x2.f32).
#pragma once
#include "platform.cuh"

#if __CUDA_ARCH__ >= 890

// The first value goes to the low byte.
INLINE u32 floats_to_e4m3x2(float low, float high) {
    u16 got;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(got) : "f"(high), "f"(low));
    return got;
}

#else

INLINE u32 float_to_e4m3(float value) {
    const float magnitude = fminf(fabsf(value), 448.0f);
    const u32 bits = bits_of_float(magnitude);
    // From 2^-6 up three bits of the mantissa stay; below, the unit is 2^-9 as that of 2^14 is.
    const u32 normal = (bits + 0x7FFFFu + (bits >> 20 & 1u) >> 20) - (120u << 3);
    const u32 subnormal = bits_of_float(magnitude + 16384.0f) & 0xFu;
    const u32 code = magnitude < 0.015625f ? subnormal : normal;
    return value != value ? 0x7Fu : code | (bits_of_float(value) >> 24 & 0x80u);
}

INLINE u32 floats_to_e4m3x2(float low, float high) {
    return float_to_e4m3(low) | float_to_e4m3(high) << 8;
}

#endif

INLINE u32 floats_to_e4m3x4(float a, float b, float c, float d) {
    return floats_to_e4m3x2(a, b) | floats_to_e4m3x2(c, d) << 16;
}

// Of a code without a sign. Its bits, moved to where a float has its, are 2^-120 times the value.
INLINE float positive_e4m3_to_float(u32 code) {
    return code == 0x7Fu ? float_of_bits(0x7FC00000u) : float_of_bits(code << 20) * 0x1p120f;
}
