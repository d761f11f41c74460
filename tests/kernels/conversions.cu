// The conversions of e2m1.cuh and e4m3.cuh by themselves, and this device's reciprocals.
#include "e2m1.cuh"
#include "e4m3.cuh"

// Each thread converts 8 values to a word.
KERNEL to_e2m1(const float* values, u32* codes, int count) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    float own[8];
    for (int i = 0; i < 8; ++i) own[i] = values[8 * at + i];
    codes[at] = floats_to_e2m1(own);
}

// Each thread converts 4 values to a word.
KERNEL to_e4m3(const float* values, u32* codes, int count) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const float* own = values + 4 * at;
    codes[at] = floats_to_e4m3x4(own[0], own[1], own[2], own[3]);
}

KERNEL from_e4m3(float* values) { values[threadIdx.x] = positive_e4m3_to_float(threadIdx.x); }

KERNEL reciprocals(const float* values, float* results, int count) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) results[at] = approximate_reciprocal(values[at]);
}

// The code by comparing with every midpoint.
INLINE u32 compared(float value) {
    const float size = fabsf(value);
    const u32 code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) +
                     (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
    return value != value ? 7u : code | (bits_of_float(value) >> 28 & 8u);
}

// Counts wrong codes among the floats whose bits are multiples of `step`; those that a thread
// converts together lie all over the range.
KERNEL wrong_e2m1(u32* wrong, int step) {
    const u32 threads = gridDim.x * blockDim.x;
    const u32 eighth = 0x20000000u / static_cast<u32>(step);
    u32 found = 0;
    for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < eighth; at += threads) {
        float values[8];
        u32 expected = 0;
        for (u32 i = 0; i < 8; ++i) {
            values[i] = float_of_bits(i * 0x20000000u + at * static_cast<u32>(step));
            expected |= compared(values[i]) << 4 * i;
        }
        found += floats_to_e2m1(values) != expected;
    }
    if (found) atomicAdd(wrong, found);
}
