// RMSNorm of rows, with the residual added first if RESIDUAL, quantized to NVFP4 or MXFP8. A block
// does a row, a thread VECTORS vectors of 8 of it; blocks behind the last row write the scales that
// the order 128x4 is padded with.
//
// The sum of squares is taken in the order of vLLM's rms_norm and fused_add_rms_norm
// (csrc/libtorch_stable/layernorm_kernels.cu), so that no bit differs: one vector after the other
// in a thread, with a residual by pairs; then CUB's block reduction, lanes pairwise and warps one
// by one. The caller gives as many threads as vLLM does, rounded up to warps: the others add 0.
#include "block_quantize.cuh"

SHARED float warp_sums[32];

INLINE float sum_of_squares(const float (&values)[8], float sum) {
#if RESIDUAL
    float own = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i += 2) own += values[i] * values[i] + values[i + 1] * values[i + 1];
    return sum + own;
#else
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += values[i] * values[i];
    return sum;
#endif
}

INLINE float sum_of_block(float sum) {
#pragma unroll
    for (u32 mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    if (lane_id() == 0) warp_sums[warp_id()] = sum;
    sync_block();
    float total = warp_sums[0];
    for (u32 warp = 1; warp < blockDim.x / 32; ++warp) total += warp_sums[warp];
    return total;
}

// The residual becomes x + residual in BF16, which is what is normalized.
INLINE uint4 add_residual(const uint4& x, u16* residual) {
    uint4* at = reinterpret_cast<uint4*>(residual);
    float sums[8], added[8];
    unpack_bf16x8(x, sums);
    unpack_bf16x8(*at, added);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] += added[i];
    const uint4 packed = pack_bf16x8(sums);
    *at = packed;
    return packed;
}

// What lies behind a row counts as zeros.
INLINE uint4 load_vector(const u16* row, int vector, int vectors) {
    return vector < vectors ? *reinterpret_cast<const uint4*>(row + 8 * vector)
                            : make_uint4(0u, 0u, 0u, 0u);
}

KERNEL __launch_bounds__(1024)
norm_quantize(const u16* x, u16* residual, const u16* weight, const float* global_scale, u8* codes,
              u8* scales, int rows, int columns, int x_stride, int residual_stride, float epsilon) {
    const int row = blockIdx.x, vectors = columns / 8, wide = scale_columns(columns);
    constexpr bool AHEAD = VECTORS <= 2;  // of more the registers are too few
    uint4 weights[VECTORS], packed[VECTORS];
    // No kernel's result, so it is loaded while the kernel before still runs.
#pragma unroll
    for (int v = 0; v < VECTORS && AHEAD; ++v)
        weights[v] = load_vector(weight, v * blockDim.x + threadIdx.x, vectors);
    wait_for_previous_kernel();
    start_next_kernel();
    if (row >= rows) {
        const int worker = (row - rows) * blockDim.x + threadIdx.x;
        const int workers = (gridDim.x - rows) * blockDim.x;
        zero_scale_rows(scales + (rows >> 7) * 128 * wide, wide, rows & 127, worker, workers);
        return;
    }
    const float scale = FORMAT == NVFP4 ? *global_scale : 1.0f;
    x += 1ll * row * x_stride;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        packed[v] = load_vector(x, v * blockDim.x + threadIdx.x, vectors);
    float values[8], sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
#if RESIDUAL
        const int vector = v * blockDim.x + threadIdx.x;
        if (vector < vectors)
            packed[v] =
                add_residual(packed[v], residual + 1ll * row * residual_stride + 8 * vector);
#endif
        unpack_bf16x8(packed[v], values);
        sum = sum_of_squares(values, sum);
    }
    const float inverse = rsqrtf(sum_of_block(sum) / columns + epsilon);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const int vector = v * blockDim.x + threadIdx.x;
        if (!AHEAD) weights[v] = load_vector(weight, vector, vectors);
        float factors[8];
        unpack_bf16x8(packed[v], values);
        unpack_bf16x8(weights[v], factors);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = values[i] * inverse * factors[i];
        unpack_bf16x8(pack_bf16x8(values), values);  // rounded as between two kernels
        store_quantized(values, vector, columns, scale,
                        reinterpret_cast<Codes*>(codes) + 1ll * row * vectors, scales, row);
    }
}
