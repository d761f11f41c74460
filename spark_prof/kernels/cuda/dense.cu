// y = x W^T + bias for up to 16 tokens: the weights are read once, straight to the tensor cores.
//
// Warps share out the work as split.cuh says, and their sums are added in a fixed order. DEPTH units
// a warp are in flight, with X_AHEAD their activations too. The grid may be smaller than the work:
// blocks then go on to further stacks, and load ahead across that border. With ROOM the activations
// are in shared memory, see rows.cuh.
//
// With GATED the rows are those of gate and up, eight of each by turns as in gate_up.cu, and y is
// silu(gate) up.
#ifndef GATED
#define GATED 0
#endif
#ifndef ROOM
#define ROOM 0
#endif
#if ROOM
#define PARTIALS 1  // the rows take what room there is
#include "rows.cuh"
#endif
#include "split.cuh"

constexpr int ROWS = GATED ? 8 : 16;  // of the result, that a stack makes
#if SPLIT > 1
// Results of a thread: rows of one token each; with GATED a row of gate and, eight further, its up.
constexpr int OUTPUTS = (STACKS * TOKENS * ROWS + WARPS * 32 - 1) / (WARPS * 32);
constexpr int HALVES = GATED ? 2 : 1;
INLINE int output_row(int first, int i) {
    const int at = threadIdx.x + i * WARPS * 32;
    return (first + at / (ROWS * TOKENS)) * 16 + (at & (ROWS - 1));
}
#else
constexpr int OUTPUTS = 2, HALVES = 1;  // rows, of all tokens
INLINE int output_row(int first, int i) {
    return (first + warp_id()) * 16 + (lane_id() >> 2) + 8 * i;
}
#endif

// Whether where a lane reads is moved from unit to unit, and not made anew: gate and up in BF16 have
// the registers for it where one row of x is in shared memory.
constexpr bool MOVES = FORMAT != BF16 || !GATED || ROOM == 1;

KERNEL __launch_bounds__(WARPS * 32, MIN_BLOCKS)
dense(const u16* x, const u8* weights, const u8* scales, const float* row_scale, const u16* bias,
      u16* out, int tokens, int rows, int x_stride, const u16* residual, const float* norm_weight,
      u16* stream, float epsilon) {
    const int group = lane_id() >> 2, member = lane_id() & 3;
    const int stack = warp_id() / SPLIT, split = warp_id() % SPLIT;
    const int stacks = (rows + 15) / 16;
    const int step = gridDim.x * STACKS, begin = blockIdx.x * STACKS;

#if ROOM
    const u16* const own_x = row_of[min(group, tokens - 1)];
    const u16* const second_x = own_x;  // not read: there are 8 tokens at most
#else
    const u16* const own_x = x + 1ll * min(group, tokens - 1) * x_stride;
    const u16* const second_x = x + 1ll * min(8 + group, tokens - 1) * x_stride;
#endif

    Unit ring[DEPTH];
#if X_AHEAD
    Activations ring_x[DEPTH];
#endif
    int ahead_unit = split, ahead_first = begin;
    // Of BF16, which is read where the model has it, all rows of gate lie before those of up.
    constexpr bool IN_PLACE = FORMAT == BF16 && GATED;
    const long long eighth = 16ll * COLUMNS * (IN_PLACE ? stacks : 1);
    // A stack beyond the last is the last again, and is not stored.
    LaneUnit ahead;
    const u16* ahead_x = lane_activations(own_x, split);
    auto turn_to = [&](int first) {
        const long long at = min(first + stack, stacks - 1);
        ahead = {weights + at * (IN_PLACE ? WEIGHT_STRIDE / 2 : WEIGHT_STRIDE),
                 scales + at * SCALE_STRIDE};
        if (MOVES) ahead = lane_unit(ahead.weights, ahead.scales, split);
    };
    auto load = [&](int slot, bool with_x) {
        if (ahead_first < stacks && (WHOLE_RINGS || ahead_unit < UNITS)) {
            if (MOVES)
                load_weights(ring[slot], ahead, slot * SPLIT, ahead_unit, eighth);
            else
                load_weights(ring[slot], ahead.weights, ahead.scales, ahead_unit, eighth);
#if X_AHEAD
            if (with_x)
                load_activations<ROOM != 0>(ring_x[slot], ahead_x, slot * SPLIT, ahead_unit);
#endif
        }
        ahead_unit += SPLIT;
        if (slot < DEPTH - 1) return;
        // Not a turn earlier where the last units do not suffice for all warps.
        if (ahead_unit >= UNITS_A_WARP * SPLIT) {
            ahead_unit = split;
            ahead_x = lane_activations(own_x, split);
            turn_to(ahead_first += step);
        } else {
            if (MOVES) advance(ahead, RING);
            ahead_x += RING * UNIT_COLUMNS;
        }
    };
    // The weights do not depend on the kernel before; what is read after the wait may.
    turn_to(begin);
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) load(slot, false);
#if ROOM
    make_rows(x, x_stride, residual, norm_weight, stream, epsilon, tokens);
#else
    start_next_kernel();
    wait_for_previous_kernel();
#endif
#if X_AHEAD
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot)
        if (split + slot * SPLIT < UNITS)
            load_activations<ROOM != 0>(ring_x[slot], lane_activations(own_x, split),
                                        slot * SPLIT, split + slot * SPLIT);
#endif

    auto store = [&](int row, int token, float sum, float scale, float offset) {
        if (row < rows && token < tokens)
            out[1ll * token * rows + row] = float_to_bf16(sum * scale + offset);
    };
    // row: of gate; all of them are among the packed ones, whose number is a multiple of 16.
    auto store_gated = [&](int row, int token, float gate, float up) {
        if (row < rows && token < tokens)
            out[1ll * token * (rows / 2) + row / 16 * 8 + (row & 7)] =
                float_to_bf16(gate / (1.f + expf(-gate)) * up);
    };
    auto bias_of = [&](int row) {
        return bias && row < rows ? bf16_to_float(bias[row]) : 0.f;
    };
    auto scale_of = [&](int row) {
        return FORMAT == BF16 ? 1.f : row < rows ? row_scale[row] : 0.f;
    };
    int turn = 0;  // of the shared sums
    // first: of the stacks that the block does now.
    for (int first = begin; first < stacks; first += step, turn ^= 1) {
        float sums[TOKEN_TILES][4] = {};
        // What the results need is asked for now, so that nobody waits for it at the end.
        float scale[OUTPUTS][HALVES], offset[OUTPUTS][HALVES];
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i)
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                const int row = output_row(first, i) + 8 * half;
                scale[i][half] = scale_of(row);
                offset[i][half] = bias_of(row);
            }
        const u16* now_x = lane_activations(own_x, split);
        for (int done = 0; done < UNITS_A_WARP; done += DEPTH, now_x += RING * UNIT_COLUMNS) {
#pragma unroll
            for (int slot = 0; slot < DEPTH; ++slot) {
                const int unit = split + (done + slot) * SPLIT;
                if (WHOLE_RINGS || unit < UNITS) {
#if X_AHEAD
                    multiply(ring[slot], ring_x[slot], second_x, unit, TOKENS, sums);
#else
                    Activations activations;
                    if (MOVES)
                        load_activations<ROOM != 0>(activations, now_x, slot * SPLIT, unit);
                    else
                        load_activations<ROOM != 0>(activations, own_x, unit);
                    multiply(ring[slot], activations, second_x, unit, TOKENS, sums);
#endif
                }
                load(slot, true);
            }
        }
#if SPLIT > 1
        Partial& shared = partial[turn % PARTIALS];
        share_sums(shared, sums, group, member);
        sync_block();
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i) {
            const int at = threadIdx.x + i * WARPS * 32;
            const int which = at / (ROWS * TOKENS), token = at / ROWS % TOKENS;
            if (which >= STACKS || token >= tokens) continue;
            float sum[HALVES] = {};
#pragma unroll
            for (int part = 0; part < SPLIT; ++part)
#pragma unroll
                for (int half = 0; half < HALVES; ++half)
                    sum[half] += shared[which * SPLIT + part][token][(at & (ROWS - 1)) + 8 * half];
            constexpr int UP = HALVES - 1;
            if (GATED)
                store_gated(output_row(first, i), token, sum[0] * scale[i][0] + offset[i][0],
                            sum[UP] * scale[i][UP] + offset[i][UP]);
            else
                store(output_row(first, i), token, sum[0], scale[i][0], offset[i][0]);
        }
        if (PARTIALS == 1 && first + step < stacks) sync_block();
#else
#pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < (GATED ? 2 : 4); ++i) {
                const int token = 8 * tile + 2 * member + (i & 1);
                if (GATED)
                    store_gated(output_row(first, 0), token,
                                sums[tile][i] * scale[0][0] + offset[0][0],
                                sums[tile][(i + 2) & 3] * scale[1][0] + offset[1][0]);
                else
                    store(output_row(first, i >> 1), token, sums[tile][i], scale[i >> 1][0],
                          offset[i >> 1][0]);
            }
#endif
    }
}
