// Quantizes rows to NVFP4 or MXFP8: what the passes that end in a quantized row have in common.
//
// A thread holds 8 consecutive values; neighbouring lanes share the scale of a block. The
// arithmetic is that of vLLM's kernels: csrc/libtorch_stable/quantization/fp4/nvfp4_utils.cuh, and
// for MXFP8 mxfp8_utils.py, whose scale is 2^ceil(log2(amax / 448)).
//
// FORMAT: 0 NVFP4, 3 MXFP8. SWIZZLED: whether scales lie in the order 128x4, which pads rows to 128
// and columns to 4; else row by row.
#pragma once
#include "e2m1.cuh"
#include "e4m3.cuh"

#define NVFP4 0
#define MXFP8 3

#if FORMAT == NVFP4
constexpr int BLOCK_LANES = 2;
#else
constexpr int BLOCK_LANES = 4;
#endif
constexpr int BLOCK_VALUES = 8 * BLOCK_LANES;

INLINE int scale_columns(int columns) {
    const int blocks = columns / BLOCK_VALUES;
    return SWIZZLED ? (blocks + 3) / 4 * 4 : blocks;
}

// Where the scale of a block is. In the order 128x4 a tile of 128 rows and 4 columns has 512 bytes.
INLINE int scale_offset(int row, int column, int columns) {
    if (!SWIZZLED) return row * columns + column;
    const int tile = (row >> 7) * (columns >> 2) + (column >> 2);
    return tile * 512 + (row & 31) * 16 + (row >> 5 & 3) * 4 + (column & 3);
}

// Writes 0 as the scales of the rows `first` to 127 of a row of tiles.
INLINE void zero_scale_rows(u8* row_of_tiles, int columns, int first, int worker, int workers) {
    u32* words = reinterpret_cast<u32*>(row_of_tiles);
    for (int word = worker; word < columns / 4 * 128; word += workers) {
        const int row = (word & 3) * 32 + (word >> 2 & 31);
        if (row >= first) words[word] = 0u;
    }
}

INLINE void unpack_bf16x8(const uint4& packed, float (&values)[8]) {
    const u32 pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        values[2 * i] = float_of_bits(pairs[i] << 16);
        values[2 * i + 1] = float_of_bits(pairs[i] & 0xFFFF0000u);
    }
}

INLINE uint4 pack_bf16x8(const float (&values)[8]) {
    return make_uint4(
        floats_to_bf16x2(values[0], values[1]), floats_to_bf16x2(values[2], values[3]),
        floats_to_bf16x2(values[4], values[5]), floats_to_bf16x2(values[6], values[7]));
}

// A NaN does not count, unless there is nothing else.
INLINE float block_amax(const float (&values)[8]) {
    float amax = fabsf(values[0]);
#pragma unroll
    for (int i = 1; i < 8; ++i) amax = fmaxf(amax, fabsf(values[i]));
#pragma unroll
    for (u32 mask = 1; mask < BLOCK_LANES; mask *= 2) amax = fmaxf(amax, shuffle_xor(amax, mask));
    return amax;
}

#if FORMAT == NVFP4

using Codes = u32;

// global_scale: what the scales are multiplied with, 448 * 6 / amax of the tensor.
INLINE Codes quantize_block(float (&values)[8], float global_scale, u8& scale) {
    const float wanted = global_scale * (block_amax(values) * approximate_reciprocal(6.0f));
    scale = static_cast<u8>(floats_to_e4m3x2(wanted, 0.0f));
    const float step = positive_e4m3_to_float(scale);
    const float factor =
        step != 0.0f ? approximate_reciprocal(step * approximate_reciprocal(global_scale)) : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] *= factor;
    return floats_to_e2m1(values);
}

#else

using Codes = uint2;

// 448 is 1.75 * 2^8. A bf16 has so few bits that no way to divide by 448 rounds across a power.
INLINE Codes quantize_block(float (&values)[8], float, u8& scale) {
    const float amax = block_amax(values);
    const u32 bits = bits_of_float(amax);
    const int above = (bits & 0x7FFFFFu) > 0x600000u;
    int power = max(static_cast<int>(bits >> 23) - 8 + above, 0);
    if (bits >= 0x7F800000u) power = 254;
    scale = static_cast<u8>(amax != amax ? 255 : power);
    // 2^(127 - power), of which the least is subnormal.
    const float factor = float_of_bits(power == 254 ? 0x00400000u : (254u - power) << 23);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] *= factor;
    return make_uint2(floats_to_e4m3x4(values[0], values[1], values[2], values[3]),
                      floats_to_e4m3x4(values[4], values[5], values[6], values[7]));
}

#endif

// Quantizes 8 values of a row and stores them. Every lane of the warp calls it, also those whose
// vector lies behind the row: they write the padding of the scales. It is 0 even where a NaN of the
// row has made their zeros NaN.
INLINE void store_quantized(float (&values)[8], int vector, int columns, float global_scale,
                            Codes* row_of_codes, u8* scales, int scale_row) {
    u8 scale;
    const Codes codes = quantize_block(values, global_scale, scale);
    const bool inside = 8 * vector < columns;
    if (inside) row_of_codes[vector] = codes;
    const int column = vector / BLOCK_LANES, wide = scale_columns(columns);
    if (vector % BLOCK_LANES == 0 && column < wide)
        scales[scale_offset(scale_row, column, wide)] = inside ? scale : 0;
}
