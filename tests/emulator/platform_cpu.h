// The CPU's half of platform.cuh: the same names, for a C++ compiler.
//
// Arithmetic is IEEE 754 with one rounding an operation; nothing is contracted to a fused
// multiply-add, which NVRTC does where a kernel does not write fmaf or __fmul_rn itself.
#pragma once

#include "cpu_builtins.h"
#include "cpu_checks.h"

// Not inlined into what calls it, which is not checked.
#define KERNEL extern "C" __attribute__((noinline)) void
#define INLINE static inline __attribute__((always_inline))

INLINE u32 lane_id() { return threadIdx.x & 31u; }
INLINE u32 warp_id() { return threadIdx.x >> 5; }
INLINE void sync_block() { cpu::wait_for_block(); }
UNCHECKED static void cpu_sync_warp(cpu::Warp& warp) { warp.sync_time = ++cpu::launch.time; }
INLINE void sync_warp() { cpu::collect("sync_warp", cpu_sync_warp, nullptr); }
INLINE void fence() {}
INLINE void spin(int) {}

template <class T>
INLINE T cpu_load(const void* from) {
    cpu::check_load(from, sizeof(T));
    return *static_cast<const T*>(from);
}
INLINE uint4 load_once_16(const void* from) { return cpu_load<uint4>(from); }
INLINE uint4 load_once_16_if(bool wanted, const void* from) {
    return wanted ? load_once_16(from) : uint4{};
}
INLINE uint2 load_once_8(const void* from) { return cpu_load<uint2>(from); }
INLINE uint2 load_once_8_if(bool wanted, const void* from) {
    return wanted ? load_once_8(from) : uint2{};
}
INLINE uint4 load_16(const void* from) { return cpu_load<uint4>(from); }
INLINE uint4 load_constant_16(const void* from) { return cpu_load<uint4>(from); }
INLINE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
INLINE u32 bits_of_float(float value) { return __float_as_uint(value); }
INLINE float bf16_to_float(u16 bits) { return float_of_bits(u32(bits) << 16); }
INLINE float power_of_two(float exponent) { return exp2f(exponent); }
// NaN becomes 0x7fff, as on a GPU.
INLINE u16 float_to_bf16(float value) {
    u32 bits = bits_of_float(value);
    if (value != value) return 0x7fff;
    return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
INLINE u32 floats_to_bf16x2(float low, float high) {
    return float_to_bf16(low) | u32(float_to_bf16(high)) << 16;
}
// A product has 16 significant bits, so that a float holds it unless it is subnormal; then it is
// rounded here, in units of the smallest bf16, 2^-133.
INLINE u16 cpu_multiply_bf16(u16 a, u16 b) {
    double product = double(bf16_to_float(a)) * double(bf16_to_float(b));
    if (!(fabs(product) < 0x1p-126)) return float_to_bf16(float(product));
    return u16((a ^ b) & 0x8000) | u16(nearbyint(fabs(product) * 0x1p133));
}
INLINE u32 multiply_bf16x2(u32 a, u32 b) {
    u32 high = cpu_multiply_bf16(u16(a >> 16), u16(b >> 16));
    return high << 16 | cpu_multiply_bf16(u16(a), u16(b));
}
INLINE u32 add_bf16x2(u32 a, u32 b) {
    float low = bf16_to_float(u16(a)) + bf16_to_float(u16(b));
    return floats_to_bf16x2(low, bf16_to_float(u16(a >> 16)) + bf16_to_float(u16(b >> 16)));
}
INLINE u32 low_twice(u32 halves) { return (halves & 0xFFFFu) * 0x10001u; }
INLINE u32 high_twice(u32 halves) { return (halves >> 16) * 0x10001u; }
INLINE u32 rotate_left(u32 bits, int by) { return bits << (by & 31) | bits >> (-by & 31); }
// A fourth bit of a selector is refused: NVRTC ignores it in a constant, the instruction does not.
INLINE u32 select_bytes(u32 a, u32 b, u32 selector) {
    if (selector & 0x8888) cpu::fail("select_bytes with selector %#x", selector);
    u64 bytes = u64(b) << 32 | a;
    u32 got = 0;
    for (u32 i = 0; i < 4; ++i) {
        got |= u32(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    }
    return got;
}

typedef float CpuRow __attribute__((vector_size(32)));
struct CpuMultiplyAdd {
    float* d;
    u32 a[4], b[2];
};
// Products are exact in a float; they are added to d one by one from column 0 of a up, each sum
// rounded to float. A GPU adds eight or sixteen at once and cuts off low bits.
UNCHECKED static void cpu_multiply_add(cpu::Warp& warp) {
    if (warp.arrived != cpu::ALL_LANES) cpu::fail("multiply_add_16x8x16 without all 32 lanes");
    float a[16][16];
    CpuRow b[16], d[16];
    for (u32 lane = 0; lane < 32; ++lane) {
        const CpuMultiplyAdd& own = *static_cast<CpuMultiplyAdd*>(warp.operands[lane]);
        u32 g = lane / 4, t = lane % 4;
        for (u32 i = 0; i < 8; ++i) {
            u16 bits = u16(own.a[i / 2] >> 16 * (i % 2));
            a[g + 8 * (i / 2 % 2)][2 * t + i % 2 + 8 * (i / 4)] = bf16_to_float(bits);
        }
        for (u32 i = 0; i < 4; ++i) {
            b[2 * t + i % 2 + 8 * (i / 2)][g] = bf16_to_float(u16(own.b[i / 2] >> 16 * (i % 2)));
            d[g + 8 * (i / 2)][2 * t + i % 2] = own.d[i];
        }
    }
    for (u32 row = 0; row < 16; ++row) {
        for (u32 k = 0; k < 16; ++k) d[row] += a[row][k] * b[k];
    }
    for (u32 lane = 0; lane < 32; ++lane) {
        float* own = static_cast<CpuMultiplyAdd*>(warp.operands[lane])->d;
        for (u32 i = 0; i < 4; ++i) own[i] = d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
    }
}
INLINE void multiply_add_16x8x16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    CpuMultiplyAdd operand = {d, {a0, a1, a2, a3}, {b0, b1}};
    cpu::collect("multiply_add_16x8x16", cpu_multiply_add, &operand);
}

// Of E2M1 and of E4M3 without a sign, exactly; E4M3's last code is NaN.
INLINE double cpu_e2m1(u32 code) {
    const double sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}
INLINE double cpu_e4m3(u32 code) {
    const u32 exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 127) == 127) return double(float_of_bits(0x7fffffff));
    return exponent ? double(8 + mantissa) * double(1u << exponent) / 1024 : double(mantissa) / 512;
}
struct CpuMultiplyAddFp4 {
    float* d;
    u32 a[4], b[2], a_scales, b_scales, a_lanes, b_lane;
};
// Sums of 16 products are exact in a double, and so is each with its scales. They are added to d one
// after another from column 0 of a up, each sum rounded to float. How a GPU adds is not documented.
UNCHECKED static void cpu_multiply_add_fp4(cpu::Warp& warp) {
    if (warp.arrived != cpu::ALL_LANES) cpu::fail("multiply_add_fp4_16x8x64 without all 32 lanes");
    double a[16][64], b[64][8], a_scales[16][4], b_scales[4][8];
    const CpuMultiplyAddFp4* lanes[32];
    for (u32 lane = 0; lane < 32; ++lane) {
        const CpuMultiplyAddFp4& own = *static_cast<CpuMultiplyAddFp4*>(warp.operands[lane]);
        lanes[lane] = &own;
        u32 g = lane / 4, t = lane % 4;
        if (own.a_lanes != lanes[0]->a_lanes || own.b_lane != lanes[0]->b_lane) {
            cpu::fail("multiply_add_fp4_16x8x64 with other lanes' scales in some lanes");
        }
        for (u32 i = 0; i < 32; ++i) {
            u32 row = g + (i < 8 || (16 <= i && i < 24) ? 0 : 8);
            a[row][8 * t + i % 8 + (i < 16 ? 0 : 32)] = cpu_e2m1(own.a[i / 8] >> 4 * (i % 8));
        }
        for (u32 i = 0; i < 16; ++i) {
            b[8 * t + i % 8 + (i < 8 ? 0 : 32)][g] = cpu_e2m1(own.b[i / 8] >> 4 * (i % 8));
        }
        for (u32 block = 0; block < 4; ++block) {
            u32 a_scale = own.a_scales >> 8 * block, b_scale = own.b_scales >> 8 * block;
            if (t / 2 == own.a_lanes) a_scales[g + 8 * (t % 2)][block] = cpu_e4m3(a_scale);
            if (t == own.b_lane) b_scales[block][g] = cpu_e4m3(b_scale);
        }
    }
    for (u32 lane = 0; lane < 32; ++lane) {
        for (u32 i = 0; i < 4; ++i) {
            u32 row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            float sum = lanes[lane]->d[i];
            for (u32 block = 0; block < 4; ++block) {
                double products = 0;
                for (u32 k = 16 * block; k < 16 * block + 16; ++k) products += a[row][k] * b[k][column];
                sum = float(double(sum) + products * a_scales[row][block] * b_scales[block][column]);
            }
            lanes[lane]->d[i] = sum;
        }
    }
}
template <int A_LANES, int B_LANE>
INLINE void multiply_add_fp4_16x8x64(float (&d)[4], const uint4& a, u32 b0, u32 b1, u32 a_scales,
                                     u32 b_scales) {
    static_assert(A_LANES >= 0 && A_LANES < 2 && B_LANE >= 0 && B_LANE < 4, "lanes of a group");
    CpuMultiplyAddFp4 operand = {d, {a.x, a.y, a.z, a.w}, {b0, b1}, a_scales, b_scales, A_LANES, B_LANE};
    cpu::collect("multiply_add_fp4_16x8x64", cpu_multiply_add_fp4, &operand);
}
INLINE u32 cpu_to_e2m1(float value) {
    const float ends[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.f};  // between code i and the next
    if (value != value) return 7;
    const u32 sign = bits_of_float(value) >> 31 << 3;
    const float size = value < 0 ? -value : value;
    u32 code = 0;
    for (u32 i = 0; i < 7; ++i) code += i % 2 ? size >= ends[i] : size > ends[i];
    return sign | code;
}
INLINE u32 floats_to_e2m1x2(float low, float high) { return cpu_to_e2m1(low) | cpu_to_e2m1(high) << 4; }
INLINE u32 float_to_e4m3(float value) {
    if (value != value) return 0x7f;
    const u32 sign = bits_of_float(value) >> 31 << 7;
    const float size = value < 0 ? -value : value;
    if (size >= 448.f) return sign | 0x7e;
    if (size < 0x1p-6f) return sign | u32(nearbyint(double(size) * 512));
    const u32 bits = bits_of_float(size);
    return sign | (((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - 960);
}

struct CpuShuffle {
    u32 value, from, got;
};
UNCHECKED static void cpu_shuffle(cpu::Warp& warp) {
    for (u32 lane = 0; lane < 32; ++lane) {
        if (!(warp.arrived >> lane & 1)) continue;
        CpuShuffle& own = *static_cast<CpuShuffle*>(warp.operands[lane]);
        u32 from = own.from & 31;
        if (!(warp.arrived >> from & 1)) cpu::fail("a shuffle from lane %u, which has left", from);
        own.got = static_cast<CpuShuffle*>(warp.operands[from])->value;
    }
}
INLINE u32 shuffle(u32 value, u32 lane) {
    CpuShuffle operand = {value, lane, 0};
    cpu::collect("a shuffle", cpu_shuffle, &operand);
    return operand.got;
}
INLINE u32 shuffle_xor(u32 value, u32 mask) { return shuffle(value, lane_id() ^ mask); }
INLINE float shuffle(float value, u32 lane) {
    return float_of_bits(shuffle(bits_of_float(value), lane));
}
INLINE float shuffle_xor(float value, u32 mask) {
    return float_of_bits(shuffle_xor(bits_of_float(value), mask));
}

INLINE u32 count_bits(u32 bits) { return u32(__popc(bits)); }

// Kernels run one after another; what would be wrong if they overlapped is noted.
UNCHECKED static void wait_for_previous_kernel() {
    cpu::running->has_waited = cpu::launch.order.waits = true;
}
UNCHECKED static void start_next_kernel() {
    if (!cpu::running->has_waited) cpu::launch.order.starts_next_early = true;
}

// Threads take turns, so that a read and a write are one step.
template <class T, class Change>
UNCHECKED static T cpu_atomic(T* at, Change change) {
    cpu::check_access(at, sizeof(T), true, true);
    T old = *at;
    *at = change(old);
    return old;
}
#define CPU_ATOMIC(name, changed)                                                                  \
    template <class T>                                                                             \
    INLINE T name(T* at, T value) {                                                                \
        return cpu_atomic(at, [=](T old) { return T(changed); });                                  \
    }
CPU_ATOMIC(atomicAdd, old + value)
CPU_ATOMIC(atomicOr, old | value)
INLINE u32 add_in_order(u32* at, u32 value) { return atomicAdd(at, value); }
#undef CPU_ATOMIC
