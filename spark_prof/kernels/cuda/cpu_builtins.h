// What CUDA C++ gives a kernel without a header, for a C++ compiler: vector types, minimum and
// maximum, intrinsics, atomics. Only what kernels of this package may use.
#pragma once

#include <string.h>

#define __align__(bytes) __attribute__((aligned(bytes)))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

// Not from math.h, which takes a third of the time that a small kernel compiles for.
extern "C" {
#define CPU_FUNCTION(name, parameters, float_parameters)                                           \
    double name parameters noexcept;                                                               \
    float name##f float_parameters noexcept;
CPU_FUNCTION(ceil, (double), (float))
CPU_FUNCTION(copysign, (double, double), (float, float))
CPU_FUNCTION(exp, (double), (float))
CPU_FUNCTION(exp2, (double), (float))
CPU_FUNCTION(fabs, (double), (float))
CPU_FUNCTION(floor, (double), (float))
CPU_FUNCTION(fma, (double, double, double), (float, float, float))
CPU_FUNCTION(fmax, (double, double), (float, float))
CPU_FUNCTION(fmin, (double, double), (float, float))
CPU_FUNCTION(ldexp, (double, int), (float, int))
CPU_FUNCTION(log, (double), (float))
CPU_FUNCTION(log2, (double), (float))
CPU_FUNCTION(nearbyint, (double), (float))
CPU_FUNCTION(rint, (double), (float))
CPU_FUNCTION(sqrt, (double), (float))
CPU_FUNCTION(tanh, (double), (float))
CPU_FUNCTION(trunc, (double), (float))
#undef CPU_FUNCTION
}
static inline bool isnan(float value) { return value != value; }
static inline bool isinf(float value) { return fabsf(value) == __builtin_inff(); }
static inline bool isfinite(float value) { return fabsf(value) < __builtin_inff(); }

struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint3 { u32 x, y, z; };

static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Of a number and a NaN the number, as fminf and fmaxf.
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
// Of a signed and an unsigned integer both count as unsigned, as in CUDA.
#define CPU_MIN_MAX(type, a_type, b_type)                                        \
    static inline type min(a_type a, b_type b) { return (type)a < (type)b ? (type)a : (type)b; } \
    static inline type max(a_type a, b_type b) { return (type)a < (type)b ? (type)b : (type)a; }
CPU_MIN_MAX(int, int, int)
CPU_MIN_MAX(u32, u32, u32)
CPU_MIN_MAX(u32, int, u32)
CPU_MIN_MAX(u32, u32, int)
CPU_MIN_MAX(long long, long long, long long)
CPU_MIN_MAX(u64, u64, u64)
#undef CPU_MIN_MAX

template <class To, class From>
static inline To cpu_bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "the bits of one are the bits of the other");
    To got;
    memcpy(&got, &value, sizeof got);
    return got;
}
static inline float __uint_as_float(u32 bits) { return cpu_bits_as<float>(bits); }
static inline float __int_as_float(int bits) { return cpu_bits_as<float>(bits); }
static inline u32 __float_as_uint(float value) { return cpu_bits_as<u32>(value); }
static inline int __float_as_int(float value) { return cpu_bits_as<int>(value); }

static inline int __popc(u32 bits) { return __builtin_popcount(bits); }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz(u32(bits)) : 32; }
template <class T>
static inline T __ldg(const T* from) { return *from; }

// Each rounds once, to nearest even: the compiler neither contracts nor reorders them.
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __frcp_rn(float value) { return 1.0f / value; }
static inline float __fsqrt_rn(float value) { return sqrtf(value); }
// Exact to half a unit here; some units off on a GPU, and not reproducible elsewhere.
static inline float __expf(float value) { return expf(value); }
static inline float __logf(float value) { return logf(value); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float value) { return float(1.0 / sqrt(double(value))); }

// Out of range to the nearest integer, NaN to 0, as cvt does.
static inline int cpu_to_int(double whole) {
    if (whole != whole) return 0;
    return int(fmin(fmax(whole, -2147483648.0), 2147483647.0));
}
static inline int __float2int_rn(float value) { return cpu_to_int(nearbyint(value)); }
static inline int __float2int_rz(float value) { return cpu_to_int(trunc(value)); }
static inline int __float2int_rd(float value) { return cpu_to_int(floor(value)); }
static inline int __float2int_ru(float value) { return cpu_to_int(ceil(value)); }

static inline void __threadfence() {}
static inline void __threadfence_block() {}
