// Activations in NVFP4, as dense_w4a4.cu reads them: E2M1 codes with a scale of E4M3 for 16 features.
//
// A scale is the block's largest magnitude / 6, times `above`; a code is the feature over what its
// block's scale stands for, which is scale / above. All is rounded as formats.quantize_nvfp4 does.
// A thread has eight features, its neighbour the others of the block. Columns up to the end of the
// last unit, and tokens up to the next multiple of eight, are zeros.
//
// COLUMNS: of x, a multiple of 16. THREADS: of a block.
#include "vectors.cuh"

constexpr int UNITS = (COLUMNS + 127) / 128;

// 0 to 448; of NaN's code something finite.
INLINE float e4m3_to_float(u32 code) { return float_of_bits(code << 20) * 0x1p120f; }

KERNEL __launch_bounds__(THREADS)
quantize_fp4(const u16* x, u8* codes, u8* scales, int tokens, int x_stride, float above) {
    const int token = blockIdx.y, eight = blockIdx.x * THREADS + threadIdx.x;
    const bool inside = 8 * eight < COLUMNS && token < tokens;
    start_next_kernel();
    wait_for_previous_kernel();
    float values[8];
    unpack(inside ? load_16(x + 1ll * token * x_stride + 8 * eight) : zeros(), values);
    float largest = fabsf(values[0]);
#pragma unroll
    for (int k = 1; k < 8; ++k) largest = fmaxf(largest, fabsf(values[k]));  // NaN does not count
    largest = fmaxf(largest, shuffle_xor(largest, 1u));
    const u32 scale = float_to_e4m3(above * (largest / 6.f));
    const float step = e4m3_to_float(scale) / above;
    u32 word = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) values[k] = step == 0.f ? values[k] * 0.f : values[k] / step;
#pragma unroll
    for (int k = 0; k < 8; k += 2) word |= floats_to_e2m1x2(values[k], values[k + 1]) << 4 * k;
    if (eight >= 16 * UNITS) return;
    // The words of a unit: of each member of a group, tile after tile, both halves of one.
    const int unit = eight >> 4, tile = eight >> 3 & 1, half = eight >> 2 & 1, member = eight & 3;
    reinterpret_cast<u32*>(codes)[(token * UNITS + unit) * 16 + member * 4 + tile * 2 + half] = word;
    if (eight % 2 == 0) scales[token * UNITS * 8 + eight / 2] = u8(scale);
}
