// The second half: out[token] = sum over its experts of weight * (W hidden + bias).
//
// A block makes 16 rows of the result for all tokens: its warps share out the units of all active
// experts in equal runs. A warp adds up in its own corner of shared memory what its experts give to
// each token, and the corners are added in a fixed order, so nothing depends on who comes first.
#include "routing.cuh"
#include "weights.cuh"

SHARED int plan_expert[MAX_ENTRIES];
SHARED int plan_start[MAX_ENTRIES + 1];
SHARED int plan_entry[MAX_ENTRIES];
SHARED int entry_token[MAX_ENTRIES];
SHARED float entry_weight[MAX_ENTRIES];
SHARED float totals[WARPS][TOKENS][16];

KERNEL __launch_bounds__(WARPS * 32, MIN_BLOCKS)
down(const u16* hidden, const u8* weights, const u8* scales, const float* row_scale,
     const u16* bias, const Plan* plan, const float* choice_weight, u16* out, int tokens,
     int choices, int stacks) {
    const int group = lane_id() >> 2, member = lane_id() & 3;
    const int stack = blockIdx.x, active = plan->experts;
    // The plan is older than the kernel before, which has waited for it.
    for (int at = threadIdx.x; at <= active; at += WARPS * 32) {
        plan_start[at] = plan->start[at];
        if (at < active) plan_expert[at] = plan->expert[at];
    }
    for (int at = threadIdx.x; at < tokens * choices; at += WARPS * 32) {
        const int entry = plan->entry[at];
        plan_entry[at] = entry;
        entry_token[at] = entry / choices;
        entry_weight[at] = choice_weight[entry];
    }
    for (int at = threadIdx.x; at < WARPS * TOKENS * 16; at += WARPS * 32)
        totals[at / (TOKENS * 16)][at / 16 % TOKENS][at % 16] = 0.f;
    sync_block();

    const int units = active * UNITS;
    const int first = units * warp_id() / WARPS, end = units * (warp_id() + 1) / WARPS;
    struct Slot {
        Unit unit;
        float scale[2];
        u32 bias;  // of both rows, if this is the first unit of its expert
#if X_AHEAD
        Activations x;
#endif
    };
    auto rows_of = [&](int which) {
        const int begin = plan_start[which], entries = plan_start[which + 1] - begin;
        Rows rows;
#pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; ++tile)
            rows.x[tile] = hidden + 1ll * plan_entry[begin + min(8 * tile + group, entries - 1)] *
                                        COLUMNS;
        return rows;
    };
    auto entries_of = [&](int which) { return plan_start[which + 1] - plan_start[which]; };
    auto load = [&](Slot& slot, int at, bool with_x) {
        if (at >= end) return;
        const int which = at / UNITS, unit = at - which * UNITS;
        const long long place = 1ll * plan_expert[which] * stacks + stack;
        load_weights(slot.unit, weights + place * WEIGHT_STRIDE, scales + place * SCALE_STRIDE, unit);
        const long long row = place * 16 + group;
        slot.scale[0] = row_scale[row];
        slot.scale[1] = row_scale[row + 8];
        slot.bias = bias && unit == 0 ? bias[row] | u32(bias[row + 8]) << 16 : 0u;
#if X_AHEAD
        if (with_x) load_activations(slot.x, rows_of(which), unit, entries_of(which));
#endif
    };
    Slot ring[DEPTH];
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) load(ring[slot], first + slot, false);
    start_next_kernel();
    wait_for_previous_kernel();
#if X_AHEAD
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot)
        if (first + slot < end) {
            const int which = (first + slot) / UNITS;
            load_activations(ring[slot].x, rows_of(which), (first + slot) % UNITS,
                             entries_of(which));
        }
#endif

    float sums[TOKEN_TILES][4] = {};
    u32 offsets = 0u;
    for (int done = first; done < end; done += DEPTH) {
#pragma unroll
        for (int slot = 0; slot < DEPTH; ++slot) {
            const int at = done + slot;
            if (at >= end) break;
            const int which = at / UNITS, unit = at - which * UNITS;
            const int begin = plan_start[which], entries = entries_of(which);
#if X_AHEAD
            multiply(ring[slot].unit, ring[slot].x, sums, entries);
#else
            Activations activations;
            load_activations(activations, rows_of(which), unit, entries);
            multiply(ring[slot].unit, activations, sums, entries);
#endif
            offsets |= ring[slot].bias;
            if (unit == UNITS - 1 || at == end - 1) {
                sync_warp();  // another lane may have added to the same token for another expert
#pragma unroll
                for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int column = 8 * tile + 2 * member + (i & 1);
                        const u32 offset = i >> 1 ? offsets & 0xFFFF0000u : offsets << 16;
                        if (column < entries)
                            totals[warp_id()][entry_token[begin + column]][group + 8 * (i >> 1)] +=
                                entry_weight[begin + column] *
                                (sums[tile][i] * ring[slot].scale[i >> 1] + float_of_bits(offset));
                        sums[tile][i] = 0.f;
                    }
                offsets = 0u;
            }
            load(ring[slot], at + DEPTH, true);
        }
    }
    sync_block();
    for (int at = threadIdx.x; at < tokens * 16; at += WARPS * 32) {
        const int row = at & 15, token = at >> 4;
        float sum = 0.f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += totals[warp][token][row];
        out[1ll * token * stacks * 16 + stack * 16 + row] = float_to_bf16(sum);
    }
}
