// The RMS norm of x + residual, a block to each row and a thread to eight columns: for more rows than
// those that rows.cuh has room for.
//
// As vLLM compiles it: all in float32, rounded to bf16 once. COLUMNS: a multiple of 8, at most 8192.
#include "vectors.cuh"

constexpr int THREADS = (COLUMNS / 8 + 31) / 32 * 32;

SHARED float squares[THREADS / 32];

KERNEL __launch_bounds__(THREADS)
row_norm(const u16* x, const u16* residual, const float* weight, u16* stream, u16* normed, int x_stride,
     float epsilon) {
    const int column = threadIdx.x * 8;
    const bool inside = column < COLUMNS;
    const long long at = 1ll * blockIdx.x * COLUMNS + column;
    float factors[8] = {}, sum[8] = {}, square = 0.f;
    if (inside) load_floats(factors, weight + column);
    start_next_kernel();
    wait_for_previous_kernel();
    if (inside) {
        const uint4 own = load_16(x + 1ll * blockIdx.x * x_stride + column);
        add(own, residual ? load_16(residual + at) : zeros(), sum);
        *reinterpret_cast<uint4*>(stream + at) = packed(sum);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) square += sum[k] * sum[k];
    square = warp_sum(square);
    if (lane_id() == 0) squares[warp_id()] = square;
    sync_block();
    float total = 0.f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) total += squares[warp];
    const float inverse = rsqrtf(total * (1.f / COLUMNS) + epsilon);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum[k] *= inverse * factors[k];
    if (inside) *reinterpret_cast<uint4*>(normed + at) = packed(sum);
}
