// Floats to E2M1: one conversion instruction a pair where the target has it, else arithmetic.
//
// Both give the same for every float: nearest, ties to the even code, beyond 6 and infinity to 6
// with its sign, -0 to -0, NaN of either sign to +6 (PTX ISA, cvt.rn.satfinite.e2m1x2.f32).
#pragma once
#include "platform.cuh"

// sm_100, sm_120 and sm_121 have the instruction, but only under a name with a suffix: sm_121a has
// it, sm_121 has not, and __CUDA_ARCH__ is 1210 for both. sm_90a sets the first two macros as well.
#if __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000 || __CUDA_ARCH_SPECIFIC__ >= 1000 ||                   \
    defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM101_ALL) ||                \
    defined(__CUDA_ARCH_FEAT_SM103_ALL) || defined(__CUDA_ARCH_FEAT_SM110_ALL) ||                \
    defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define NATIVE_E2M1 1
#else
#define NATIVE_E2M1 0
#endif

#if NATIVE_E2M1

// The first value goes to the lowest four bits.
INLINE u32 floats_to_e2m1(const float (&values)[8]) {
    u32 got;
    asm("{\n"
        ".reg .b8 first, second, third, fourth;\n"
        "cvt.rn.satfinite.e2m1x2.f32 first, %2, %1;\n"
        "cvt.rn.satfinite.e2m1x2.f32 second, %4, %3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 third, %6, %5;\n"
        "cvt.rn.satfinite.e2m1x2.f32 fourth, %8, %7;\n"
        "mov.b32 %0, {first, second, third, fourth};\n"
        "}"
        : "=r"(got)
        : "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "f"(values[4]),
          "f"(values[5]), "f"(values[6]), "f"(values[7]));
    return got;
}

#else

// Adding 2^22 times the power of two below a magnitude leaves, in the lowest bits, how many steps
// of E2M1 the magnitude is, rounded as floats are: to nearest, ties to even. From 1 up a power of
// two has two steps, which are two codes; below 1 the steps are those of 1.
INLINE u32 float_to_e2m1(float value) {
    const float clamped = fmaxf(value < 6.0f ? value : 6.0f, -6.0f);  // of NaN 6
    const float magnitude = fabsf(clamped);
    const u32 power = bits_of_float(fmaxf(magnitude, 1.0f)) & 0x7F800000u;
    const u32 sum = bits_of_float(magnitude + float_of_bits(power + (22u << 23)));
    const u32 code = sum + (sum >> 22) - 2u * (127u + 22u);
    return (code & 7u) | (bits_of_float(clamped) >> 28 & 8u);
}

// The first value goes to the lowest four bits.
INLINE u32 floats_to_e2m1(const float (&values)[8]) {
    u32 got = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) got |= float_to_e2m1(values[i]) << 4 * i;
    return got;
}

#endif
