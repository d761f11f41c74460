// What a kernel of this package needs from the machine, once for GPUs and once for the CPU.
//
// The kernels include no header of CUDA, so that NVRTC alone compiles them. With a C++ compiler
// the tests run them on the CPU, thread by thread (tests/emulator), which is how they are checked
// where there is no GPU.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#ifndef __CUDACC__
#include "platform_cpu.h"
#else

#define KERNEL extern "C" __global__ void
#define SHARED __shared__
#define INLINE __device__ __forceinline__

INLINE u32 lane_id() { return threadIdx.x & 31u; }
INLINE u32 warp_id() { return threadIdx.x >> 5; }
INLINE void sync_block() { __syncthreads(); }
INLINE void sync_warp() { __syncwarp(); }
// What this thread has written is seen by whoever sees an atomic of its block after this.
INLINE void fence() { __threadfence(); }

// Loads of what is read once: they leave no trace in L1, and in L2 they make room first. The pointer
// is aligned to the size.
constexpr u64 EVICT_FIRST = 0x12F0000000000000ull;  // createpolicy.fractional.L2::evict_first makes it
INLINE uint4 load_once_16(const void* from) {
    uint4 got;
    asm volatile(
        "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w) : "l"(from), "l"(EVICT_FIRST));
    return got;
}
// The same where it is wanted, without a branch; else zeros, and nothing is read.
INLINE uint4 load_once_16_if(bool wanted, const void* from) {
    uint4 got;
    asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0;"
                 "mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
                 "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "=&r"(got.x), "=&r"(got.y), "=&r"(got.z), "=&r"(got.w)
                 : "l"(from), "r"(static_cast<u32>(wanted)));
    return got;
}
INLINE uint2 load_once_8(const void* from) {
    uint2 got;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(got.x), "=r"(got.y) : "l"(from), "l"(EVICT_FIRST));
    return got;
}
INLINE uint2 load_once_8_if(bool wanted, const void* from) {
    uint2 got;
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
                 "@p ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];}"
                 : "=&r"(got.x), "=&r"(got.y) : "l"(from), "r"(static_cast<u32>(wanted)));
    return got;
}
// A load of what several warps read: through L1. Not for what another thread of this grid writes.
INLINE uint4 load_16(const void* from) { return *reinterpret_cast<const uint4*>(from); }
// The same of what no kernel writes. ptxas moves such a load before wait_for_previous_kernel(), and did
// so with activations (CUDA 13.0): then it may read what was there before them.
INLINE uint4 load_constant_16(const void* from) {
    return __ldg(reinterpret_cast<const uint4*>(from));
}

INLINE float bf16_to_float(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
INLINE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
INLINE u32 bits_of_float(float value) { return __float_as_uint(value); }
// Within 2^-22 of it; 0 below 2^-126.
INLINE float power_of_two(float exponent) {
    float got;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(got) : "f"(exponent));
    return got;
}
// Round to nearest even; the first argument goes to the low half.
INLINE u32 floats_to_bf16x2(float low, float high) {
    u32 got;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(got) : "f"(high), "f"(low));
    return got;
}
INLINE u16 float_to_bf16(float value) {
    u16 got;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(got) : "f"(value));
    return got;
}
// Products of both halves, rounded to nearest even, subnormals kept.
INLINE u32 multiply_bf16x2(u32 a, u32 b) {
    u32 got;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(got) : "r"(a), "r"(b));
#else  // -0 is what adding changes nothing with
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(got) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
    return got;
}
// Sums of both halves, rounded to nearest even.
INLINE u32 add_bf16x2(u32 a, u32 b) {
    u32 got;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(got) : "r"(a), "r"(0x3F803F80u), "r"(b));
    return got;
}
// The low or the high half, twice.
INLINE u32 low_twice(u32 halves) {
    u32 got;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}"
        : "=r"(got) : "r"(halves));
    return got;
}
INLINE u32 high_twice(u32 halves) {
    u32 got;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}"
        : "=r"(got) : "r"(halves));
    return got;
}
INLINE u32 rotate_left(u32 bits, int by) { return __funnelshift_l(bits, bits, by); }
// PTX prmt: byte i of the result is byte (selector >> 4 i) & 7 of {a, b}, b's bytes being 4 to 7.
INLINE u32 select_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

// d += a b, for a 16 x 16 a (rows), a 16 x 8 b (columns) of bf16 and a 16 x 8 d of float.
// With g = lane / 4 and t = lane % 4 a lane holds of a: rows g, g + 8, g, g + 8 at columns 2t and
// 2t + 1, the last two at 2t + 8 and 2t + 9; of b: rows 2t, 2t + 1, then 2t + 8, 2t + 9, of column
// g; of d: rows g, g, g + 8, g + 8 at columns 2t, 2t + 1, 2t, 2t + 1 (PTX, mma.m16n8k16).
INLINE void multiply_add_16x8x16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same in FP4: d += a b, for a 16 x 64 a and a 64 x 8 b of E2M1 codes, eight in a word from its
// low bits up, with a scale of E4M3 for each 16 along k. GPUs of compute capability 12.x alone have
// it. A lane holds of a: rows g, g + 8, g, g + 8 at columns 8t to 8t + 7, the last two at 32 more; of
// b: rows 8t to 8t + 7, then 32 more, of column g; of d what it holds above. Four scales are a word,
// k's first in the low bits: those of a's row g are read in lane t = 2 A_LANES of the group and those
// of row g + 8 in the next, those of b's column g in lane t = B_LANE (PTX, mma.m16n8k64 and block
// scaling for mma.sync: thread-id-a and thread-id-b).
template <int A_LANES, int B_LANE>
INLINE void multiply_add_fp4_16x8x64(float (&d)[4], const uint4& a, u32 b0, u32 b1, u32 a_scales,
                                     u32 b_scales) {
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"
        ".f32.e2m1.e2m1.f32.ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "%10, {0, %12}, %11, {0, %13};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(a_scales), "r"(b_scales),
          "n"(A_LANES), "n"(B_LANE));
}
// The nearest codes, to even, of what is too large the largest: E2M1 in a byte, the first argument in
// its low half, and E4M3. NaN becomes 6 and E4M3's NaN. Compute capability 12.x, as above.
INLINE u32 floats_to_e2m1x2(float low, float high) {
    u32 got;
    asm("{.reg .b8 two; cvt.rn.satfinite.e2m1x2.f32 two, %1, %2; cvt.u32.u8 %0, two;}"
        : "=r"(got) : "f"(high), "f"(low));
    return got;
}
INLINE u32 float_to_e4m3(float value) {
    u16 got;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(got) : "f"(0.f), "f"(value));
    return got;
}

INLINE float shuffle_xor(float value, u32 mask) { return __shfl_xor_sync(~0u, value, mask); }
INLINE u32 shuffle_xor(u32 value, u32 mask) { return __shfl_xor_sync(~0u, value, mask); }
INLINE float shuffle(float value, u32 lane) { return __shfl_sync(~0u, value, lane); }
INLINE u32 shuffle(u32 value, u32 lane) { return __shfl_sync(~0u, value, lane); }
INLINE u32 count_bits(u32 bits) { return __popc(bits); }
// Adds, and returns what was there. After a barrier of its block behind it everything is seen that
// the blocks that have added before wrote before barriers of theirs.
INLINE u32 add_in_order(u32* at, u32 value) {
    u32 before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(at), "r"(value) : "memory");
    return before;
}

// Does nothing for so many clocks of the multiprocessor.
INLINE void spin(int clocks) {
    const long long begin = clock64();
    while (clock64() - begin < clocks) {
    }
}

// Programmatic dependent launch: wait until the kernel before has written, or let the next start.
// Without that launch attribute, and before sm_90, both do nothing.
#if __CUDA_ARCH__ >= 900
INLINE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
INLINE void start_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
INLINE void wait_for_previous_kernel() {}
INLINE void start_next_kernel() {}
#endif

#endif

// The largest of the warp's values, in every lane.
INLINE u32 warp_max(u32 value) {
#ifdef __CUDACC__
    return __reduce_max_sync(~0u, value);
#else
    for (u32 mask = 16; mask; mask >>= 1) value = max(value, shuffle_xor(value, mask));
    return value;
#endif
}

// The sum of the warp's values, added in a fixed order, in every lane.
INLINE float warp_sum(float value) {
#pragma unroll
    for (u32 mask = 16; mask; mask >>= 1) value += shuffle_xor(value, mask);
    return value;
}
