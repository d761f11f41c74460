// Tokens to rows sorted by expert, quantized to NVFP4 or MXFP8 on the way. Block (s, r, 0) does
// THREADS vectors of 8 of sorted row r; of the last row of an expert the blocks (s, r, 1...) write
// the scales that its part of the order 128x4 is padded with.
#include "block_quantize.cuh"

// How many experts end at or before a row; the first that does not has the row.
INLINE int expert_of(int row, const int* expert_offsets, int experts) {
    int expert = 0;
#pragma unroll 4
    for (int base = 0; base < experts; base += 32) {
        const int at = base + lane_id();
        expert += count_bits(ballot(at < experts && expert_offsets[at + 1] <= row));
    }
    return expert;
}

KERNEL __launch_bounds__(THREADS)
expand_quantize(const u16* x, const int* token_of_row, const int* expert_offsets,
                const int* scale_offsets, const float* global_scale, u8* codes, u8* scales,
                int tokens, int experts, int columns, int x_stride, int global_scale_stride) {
    const int row = blockIdx.y, vector = blockIdx.x * THREADS + threadIdx.x;
    const int wide = scale_columns(columns);
    wait_for_previous_kernel();
    start_next_kernel();
    const int expert = expert_of(row, expert_offsets, experts);
    if (expert >= experts) return;
    const int scale_row = scale_offsets[expert] + row - expert_offsets[expert];
    if (blockIdx.z) {
        if (row + 1 != expert_offsets[expert + 1]) return;
        const int worker = (blockIdx.z - 1) * gridDim.x * THREADS + vector;
        const int workers = (gridDim.z - 1) * gridDim.x * THREADS;
        zero_scale_rows(scales + 1ll * (scale_row >> 7) * 128 * wide, wide, (scale_row & 127) + 1,
                        worker, workers);
        return;
    }
    const int token = token_of_row[row];
    float values[8] = {};
    if (8 * vector < columns && token >= 0 && token < tokens) {
        const u16* from = x + 1ll * token * x_stride + 8 * vector;
        unpack_bf16x8(*reinterpret_cast<const uint4*>(from), values);
    }
    const float scale = FORMAT == NVFP4 ? global_scale[expert * global_scale_stride] : 1.0f;
    store_quantized(values, vector, columns, scale,
                    reinterpret_cast<Codes*>(codes) + 1ll * row * (columns / 8), scales, scale_row);
}
