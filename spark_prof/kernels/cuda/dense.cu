// y = x W^T + bias for up to 16 tokens: the weights are read once, straight to the tensor cores.
//
// Warps share out the work as split.cuh says, and their sums are added in a fixed order. DEPTH units
// a warp are in flight, with X_AHEAD their activations too. The grid may be smaller than the work:
// blocks then go on to further stacks, and load ahead across that border.
#include "split.cuh"

#if SPLIT > 1
// Results of a thread: rows of one token each.
constexpr int OUTPUTS = (STACKS * TOKENS * 16 + WARPS * 32 - 1) / (WARPS * 32);
INLINE int output_row(int first, int i) {
    const int at = threadIdx.x + i * WARPS * 32;
    return (first + at / (16 * TOKENS)) * 16 + (at & 15);
}
#else
constexpr int OUTPUTS = 2;  // rows, of all tokens
INLINE int output_row(int first, int i) {
    return (first + warp_id()) * 16 + (lane_id() >> 2) + 8 * i;
}
#endif

KERNEL __launch_bounds__(WARPS * 32, MIN_BLOCKS)
dense(const u16* x, const u8* weights, const u8* scales, const float* row_scale, const u16* bias,
      u16* out, int tokens, int rows, int x_stride) {
    const int group = lane_id() >> 2, member = lane_id() & 3;
    const int stack = warp_id() / SPLIT, split = warp_id() % SPLIT;
    const int stacks = (rows + 15) / 16;
    const int step = gridDim.x * STACKS, begin = blockIdx.x * STACKS;
    const int rounds = (stacks - begin + step - 1) / step;

    const u16* const own_x = x + 1ll * min(group, tokens - 1) * x_stride;
    const u16* const second_x = x + 1ll * min(8 + group, tokens - 1) * x_stride;

    Unit ring[DEPTH];
#if X_AHEAD
    Activations ring_x[DEPTH];
#endif
    int ahead_unit = split, ahead_round = 0;
    // A stack beyond the last is the last again, and is not stored.
    const u8 *ahead_weights, *ahead_scales;
    auto turn_to = [&](int round) {
        const long long at = min(begin + round * step + stack, stacks - 1);
        ahead_weights = weights + at * WEIGHT_STRIDE;
        ahead_scales = scales + at * SCALE_STRIDE;
    };
    auto load = [&](int slot, bool with_x) {
        if (ahead_round < rounds && ahead_unit < UNITS) {
            load_weights(ring[slot], ahead_weights, ahead_scales, ahead_unit);
#if X_AHEAD
            if (with_x) load_activations(ring_x[slot], own_x, ahead_unit);
#endif
        }
        ahead_unit += SPLIT;
        if (slot == DEPTH - 1 && ahead_unit >= UNITS_A_WARP * SPLIT) {
            ahead_unit = split;
            turn_to(++ahead_round);
        }
    };
    // The weights do not depend on the kernel before; what is read after the wait may.
    turn_to(0);
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) load(slot, false);
    start_next_kernel();
    wait_for_previous_kernel();
#if X_AHEAD
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot)
        if (split + slot * SPLIT < UNITS)
            load_activations(ring_x[slot], own_x, split + slot * SPLIT);
#endif

    auto store = [&](int row, int token, float sum, float scale, float offset) {
        if (row < rows && token < tokens)
            out[1ll * token * rows + row] = float_to_bf16(sum * scale + offset);
    };
    auto bias_of = [&](int row) {
        return bias && row < rows ? bf16_to_float(bias[row]) : 0.f;
    };
    auto scale_of = [&](int row) {
        return FORMAT == BF16 ? 1.f : row < rows ? row_scale[row] : 0.f;
    };
    for (int round = 0; round < rounds; ++round) {
        float sums[TOKEN_TILES][4] = {};
        const int first = begin + round * step;  // of the stacks that the block does now
        // What the results need is asked for now, so that nobody waits for it at the end.
        float scale[OUTPUTS], offset[OUTPUTS];
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i) {
            const int row = output_row(first, i);
            scale[i] = scale_of(row);
            offset[i] = bias_of(row);
        }
        for (int done = 0; done < UNITS_A_WARP; done += DEPTH) {
#pragma unroll
            for (int slot = 0; slot < DEPTH; ++slot) {
                const int unit = split + (done + slot) * SPLIT;
                if (unit < UNITS) {
#if X_AHEAD
                    multiply(ring[slot], ring_x[slot], second_x, unit, TOKENS, sums);
#else
                    Activations activations;
                    load_activations(activations, own_x, unit);
                    multiply(ring[slot], activations, second_x, unit, TOKENS, sums);
#endif
                }
                load(slot, true);
            }
        }
#if SPLIT > 1
        Partial& shared = partial[round & 1];
        share_sums(shared, sums, group, member);
        sync_block();
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i) {
            const int at = threadIdx.x + i * WARPS * 32;
            const int which = at / (16 * TOKENS), token = (at >> 4) % TOKENS;
            if (which >= STACKS || token >= tokens) continue;
            float sum = 0.f;
#pragma unroll
            for (int part = 0; part < SPLIT; ++part)
                sum += shared[which * SPLIT + part][token][at & 15];
            store(output_row(first, i), token, sum, scale[i], offset[i]);
        }
#else
#pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                store(output_row(first, i >> 1), 8 * tile + 2 * member + (i & 1), sums[tile][i],
                      scale[i >> 1], offset[i >> 1]);
#endif
    }
}
