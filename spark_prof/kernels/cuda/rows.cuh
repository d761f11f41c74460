// Activations of up to ROOM rows in shared memory: those of x or, with NORM, the RMS norm of the
// residual stream x + residual. Each block makes all of them for itself.
#pragma once
#include "weights.cuh"

static_assert(ROOM <= 8, "rows of 8 tokens at most");
constexpr int ROW_VECTORS = COLUMNS / 8;  // of 8 elements
// Of a row: two rows then begin 64 bytes apart in the banks, as the lanes of two groups read them.
constexpr int ROW_STRIDE = COLUMNS + (96 - COLUMNS % 64) % 64;

SHARED __align__(16) u16 row_of[ROOM][ROW_STRIDE];

#if NORM
static_assert(ROOM <= WARPS, "a warp has one row at most");
constexpr int TEAM = WARPS / ROOM;  // warps that take a row
constexpr int EACH = (ROW_VECTORS + TEAM * 32 - 1) / (TEAM * 32);

SHARED float squares[WARPS];

// Waits for the kernel before; the norm's weight does not depend on it. Without a residual the
// stream is x. `stream` gets the sum, of block 0. As vLLM compiles it: all in float32, and the result
// rounded to bf16 once. Every sum is added in a fixed order.
INLINE void make_rows(const u16* x, int x_stride, const u16* residual, const float* weight,
                      u16* stream, float epsilon, int tokens) {
    const int token = warp_id() / TEAM, first = threadIdx.x - token * TEAM * 32;
    // One vector's: there are no registers for more.
    float factors[8];
    if (first < ROW_VECTORS) load_floats(factors, weight + 8 * first);
    start_next_kernel();
    wait_for_previous_kernel();
    float sum[EACH][8], square = 0.f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int vector = first + i * TEAM * 32;
        if (token >= tokens || vector >= ROW_VECTORS) continue;
        const uint4 own = load_16(x + 1ll * token * x_stride + 8 * vector);
        const uint4 before = residual ? load_16(residual + token * COLUMNS + 8 * vector) : zeros();
        add(own, before, sum[i]);
#pragma unroll
        for (int k = 0; k < 8; ++k) square += sum[i][k] * sum[i][k];
    }
    square = warp_sum(square);
    if (lane_id() == 0) squares[warp_id()] = square;
    sync_block();
    float total = 0.f;
#pragma unroll
    for (int warp = 0; warp < TEAM; ++warp) total += squares[min(token, ROOM - 1) * TEAM + warp];
    const float inverse = rsqrtf(total * (1.f / COLUMNS) + epsilon);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int vector = first + i * TEAM * 32;
        if (token >= tokens || vector >= ROW_VECTORS) continue;
        if (blockIdx.x == 0)
            *reinterpret_cast<uint4*>(stream + token * COLUMNS + 8 * vector) = packed(sum[i]);
        if (i) load_floats(factors, weight + 8 * vector);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum[i][k] = sum[i][k] * inverse * factors[k];
        *reinterpret_cast<uint4*>(&row_of[token][8 * vector]) = packed(sum[i]);
    }
    sync_block();
}
#else
// Waits for the kernel before.
INLINE void make_rows(const u16* x, int x_stride, const u16*, const float*, u16*, float,
                      int tokens) {
    constexpr int EACH = (ROOM * ROW_VECTORS + WARPS * 32 - 1) / (WARPS * 32);
    start_next_kernel();
    wait_for_previous_kernel();
#pragma unroll 8
    for (int i = 0; i < EACH; ++i) {
        const int at = threadIdx.x + i * WARPS * 32, token = at / ROW_VECTORS;
        const int first = 8 * (at - token * ROW_VECTORS);
        if (token < tokens)
            *reinterpret_cast<uint4*>(&row_of[token][first]) =
                load_16(x + 1ll * token * x_stride + first);
    }
    sync_block();
}
#endif
