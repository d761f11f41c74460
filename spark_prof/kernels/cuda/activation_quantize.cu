// SiLU(gate) * up, quantized to NVFP4 or MXFP8. Block (s, r) does THREADS vectors of 8 of row r;
// blocks behind the last row write the scales that the order 128x4 is padded with.
//
// SiLU and the product are each rounded to BF16, as vLLM's silu_and_mul does them.
#include "block_quantize.cuh"

// vLLM adds 0 to up, the beta of its activations: so -0 counts as 0.
INLINE float gated(float gate, float up) {
    const float silu = gate / (1.0f + expf(-gate));
    return bf16_to_float(float_to_bf16(silu)) * (up + 0.0f);
}

KERNEL __launch_bounds__(THREADS)
activation_quantize(const u16* gate_up, const float* global_scale, u8* codes, u8* scales, int rows,
                    int columns, int gate_up_stride) {
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
        const u16* from = gate_up + 1ll * row * gate_up_stride + 8 * vector;
        const uint4 first = *reinterpret_cast<const uint4*>(from);
        const uint4 second = *reinterpret_cast<const uint4*>(from + columns);
        float gate[8], up[8];
        unpack_bf16x8(first, gate);
        unpack_bf16x8(second, up);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = gated(gate[i], up[i]);
        unpack_bf16x8(pack_bf16x8(values), values);  // rounded as between two kernels
    }
    store_quantized(values, vector, columns, scale,
                    reinterpret_cast<Codes*>(codes) + 1ll * row * (columns / 8), scales, row);
}
