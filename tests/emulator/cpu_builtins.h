// What CUDA C++ gives a kernel without a header, for a C++ compiler: what those here use.
#pragma once

#include <string.h>

#define __align__(bytes) __attribute__((aligned(bytes)))
#define __device__
#define __launch_bounds__(...)

// Not from math.h, which takes a third of the time that a small kernel compiles for.
extern "C" {
float exp2f(float) noexcept;
float expf(float) noexcept;
float fabsf(float) noexcept;
float fmaxf(float, float) noexcept;
float sqrtf(float) noexcept;
double fabs(double) noexcept;
double nearbyint(double) noexcept;
double sqrt(double) noexcept;
}

struct alignas(8) uint2 { u32 x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct uint3 { u32 x, y, z; };

static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

#define CPU_MIN_MAX(type)                                            \
    static inline type min(type a, type b) { return a < b ? a : b; } \
    static inline type max(type a, type b) { return a < b ? b : a; }
CPU_MIN_MAX(int)
CPU_MIN_MAX(u32)
CPU_MIN_MAX(long long)
#undef CPU_MIN_MAX

template <class To, class From>
static inline To cpu_bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "the bits of one are the bits of the other");
    To got;
    memcpy(&got, &value, sizeof got);
    return got;
}
static inline float __uint_as_float(u32 bits) { return cpu_bits_as<float>(bits); }
static inline u32 __float_as_uint(float value) { return cpu_bits_as<u32>(value); }

static inline float rsqrtf(float value) { return float(1.0 / sqrt(value)); }

static inline int __popc(u32 bits) { return __builtin_popcount(bits); }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
