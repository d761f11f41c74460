// y = x W^T + bias for up to 32 tokens, both in NVFP4: the tensor cores multiply codes and scales.
//
// Warps share out the work as split.cuh says, and their sums are added in a fixed order. DEPTH units
// a warp are in flight. The weights are laid out as dense_w4a4.py packs them: of a tile a lane has the
// 16 bytes that the instruction takes, rows g and g + 8 by turns; of a unit two neighbours have the
// scales of their group's rows in one tile, so that lanes 0 and 1 of a group scale the first tile and
// lanes 2 and 3 the second. Activations come from quantize_fp4.cu, TOKENS rows of them.
//
// FORMAT is NVFP4. TOKEN_TILES: 1 to 4, of eight tokens each.
#define PARTIALS 1
#include "split.cuh"

static_assert(FORMAT == NVFP4, "block scales of E4M3");
constexpr int X_ROW = UNITS * 64, X_SCALE_ROW = UNITS * 8;  // bytes of a token
constexpr int THREADS = WARPS * 32;

// sums[token tile] += 16 rows of a unit times 8 tokens. x and x_scales: where the lane's part of the
// first tile of tokens begins.
INLINE void multiply_fp4(const Unit& unit, const u8* x, const u8* x_scales, int index,
                         float (&sums)[TOKEN_TILES][4]) {
    const u32 row_scales = lane_id() & 1 ? unit.scales.y : unit.scales.x;
#pragma unroll
    for (int tile = 0; tile < TOKEN_TILES; ++tile) {
        const uint4 codes = load_16(x + 8 * tile * X_ROW + 64 * index);
        const u32 token_scales =
            *reinterpret_cast<const u32*>(x_scales + 8 * tile * X_SCALE_ROW + 8 * index);
        multiply_add_fp4_16x8x64<0, 0>(sums[tile], unit.weights[0], codes.x, codes.y, row_scales,
                                       token_scales);
        multiply_add_fp4_16x8x64<1, 1>(sums[tile], unit.weights[1], codes.z, codes.w, row_scales,
                                       token_scales);
    }
}

KERNEL __launch_bounds__(WARPS * 32, MIN_BLOCKS)
dense_w4a4(const u8* x, const u8* x_scales, const u8* weights, const u8* scales,
           const float* row_scale, const u16* bias, u16* out, int tokens, int rows) {
    const int group = lane_id() >> 2, member = lane_id() & 3;
    const int split = warp_id() % SPLIT;
    // A stack beyond the last is the last again, and is not stored.
    const int first = blockIdx.x * STACKS;
    const long long stack = min(first + int(warp_id()) / SPLIT, (rows + 15) / 16 - 1);
    weights += stack * WEIGHT_STRIDE;
    scales += stack * SCALE_STRIDE;
    x += group * X_ROW + member * 16;
    x_scales += group * X_SCALE_ROW + (member & 1) * 4;

    Unit ring[DEPTH];
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot)
        if (split + slot * SPLIT < UNITS)
            load_weights(ring[slot], weights, scales, split + slot * SPLIT);
    // The weights do not depend on the kernel before; the activations do.
    start_next_kernel();
    wait_for_previous_kernel();

    float sums[TOKEN_TILES][4] = {};
    for (int done = 0; done < UNITS_A_WARP; done += DEPTH) {
#pragma unroll
        for (int slot = 0; slot < DEPTH; ++slot) {
            const int unit = split + (done + slot) * SPLIT, next = unit + DEPTH * SPLIT;
            if (unit < UNITS) multiply_fp4(ring[slot], x, x_scales, unit, sums);
            if (next < UNITS) load_weights(ring[slot], weights, scales, next);
        }
    }

    auto store = [&](int row, int token, float sum) {
        if (row >= rows || token >= tokens) return;
        const float offset = bias ? bf16_to_float(bias[row]) : 0.f;
        out[1ll * token * rows + row] = float_to_bf16(sum * row_scale[row] + offset);
    };
#if SPLIT > 1
    share_sums(partial[0], sums, group, member);
    sync_block();
    for (int at = threadIdx.x; at < STACKS * TOKENS * 16; at += THREADS) {
        const int which = at / (16 * TOKENS), token = at / 16 % TOKENS;
        float sum = 0.f;
#pragma unroll
        for (int part = 0; part < SPLIT; ++part)
            sum += partial[0][which * SPLIT + part][token][at & 15];
        store((first + which) * 16 + (at & 15), token, sum);
    }
#else
#pragma unroll
    for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            store((first + warp_id()) * 16 + group + 8 * (i >> 1), 8 * tile + 2 * member + (i & 1),
                  sums[tile][i]);
#endif
}
