// Rows of BF16 to NVFP4 or MXFP8. Block (s, r) does THREADS vectors of 8 of row r; blocks behind
// the last row write the scales that the order 128x4 is padded with.
#include "block_quantize.cuh"

KERNEL __launch_bounds__(THREADS)
quantize(const u16* x, const float* global_scale, u8* codes, u8* scales, int rows, int columns,
         int x_stride) {
    const int row = blockIdx.y, vector = blockIdx.x * THREADS + threadIdx.x;
    const int wide = scale_columns(columns);
    wait_for_previous_kernel();
    start_next_kernel();
    if (row >= rows) {
        const int worker = (row - rows) * gridDim.x * THREADS + vector;
        const int workers = (gridDim.y - rows) * gridDim.x * THREADS;
        zero_scale_rows(scales + (rows >> 7) * 128 * wide, wide, rows & 127, worker, workers);
        return;
    }
    const float scale = FORMAT == NVFP4 ? *global_scale : 1.0f;
    float values[8] = {};
    if (8 * vector < columns) {
        const u16* from = x + 1ll * row * x_stride + 8 * vector;
        unpack_bf16x8(*reinterpret_cast<const uint4*>(from), values);
    }
    store_quantized(values, vector, columns, scale,
                    reinterpret_cast<Codes*>(codes) + 1ll * row * (columns / 8), scales, row);
}
