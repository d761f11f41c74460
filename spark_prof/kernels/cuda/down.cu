// The second half: out[token] = sum over its experts of weight * (W hidden + bias).
//
// A block makes 16 rows of the result for all tokens: its warps share out the units of all active
// experts in equal runs. A warp adds up in its own corner of shared memory what its experts give to
// each token, and the corners are added in a fixed order, so nothing depends on who comes first.
// `apart` is as of gate_up.cu.
#include "plan.cuh"
#include "weights.cuh"

SHARED float entry_weight[MAX_ENTRIES];
SHARED float totals[WARPS][TOKENS][16];

KERNEL __launch_bounds__(WARPS * 32, MIN_BLOCKS)
down(const u16* hidden, const u8* weights, const u8* scales, const float* row_scale,
     const u16* bias, const Plan* plan, const float* choice_weight, u16* out, int tokens,
     int choices, int stacks, int apart) {
    const int group = lane_id() >> 2, member = lane_id() & 3;
    const int stack = blockIdx.x;
    // The plan and its weights are older than the kernel before, which has waited for them.
    for (int at = threadIdx.x; at < tokens * choices; at += WARPS * 32)
        entry_weight[at] = choice_weight[at];
    for (int at = threadIdx.x; at < WARPS * TOKENS * 16; at += WARPS * 32)
        totals[at / (TOKENS * 16)][at / 16 % TOKENS][at % 16] = 0.f;
    take_plan(plan, tokens * choices, choices);

    const int units = plan_experts * UNITS;
    const int first = units * warp_id() / WARPS, end = units * (warp_id() + 1) / WARPS;
    struct Slot {
        Unit unit;
        Activations x;
        float scale[2];
        u32 offsets;  // of both rows in bf16, with the first unit of an expert
        int entries;
    };
    Slot ring[DEPTH];
    int ahead = first, ahead_active = first / UNITS, ahead_unit = first - ahead_active * UNITS;
    LaneUnit ahead_at = {weights, scales};
    float ahead_scale[2] = {};
    u32 ahead_offsets = 0u;
    const u16* ahead_x = hidden;
    auto x_of = [&](int active, int which) {
        return hidden + 1ll * plan_entry[entry_of(active, which)] * COLUMNS;
    };
    // unit: of the expert that is loaded next.
    auto turn_to = [&](int active, int unit) {
        const long long place = 1ll * plan_expert[active] * stacks + stack;
        ahead_at = lane_unit(stack_at(weights, scales, place, 1ll * apart * stacks),
                             scales + place * SCALE_STRIDE, unit);
        ahead_scale[0] = FORMAT == BF16 ? 1.f : row_scale[place * 16 + group];
        ahead_scale[1] = FORMAT == BF16 ? 1.f : row_scale[place * 16 + group + 8];
        if (bias) ahead_offsets = bias[place * 16 + group] | u32(bias[place * 16 + group + 8]) << 16;
        ahead_x = lane_activations(x_of(active, group), unit);
    };
    auto load = [&](Slot& slot, bool with_x) {
        if (ahead >= end) return;
        load_weights(slot.unit, ahead_at, 0, ahead_unit);
        slot.scale[0] = ahead_scale[0];
        slot.scale[1] = ahead_scale[1];
        slot.offsets = ahead_unit ? 0u : ahead_offsets;
        slot.entries = entries_of(ahead_active);
        if (with_x) load_activations(slot.x, ahead_x, 0, ahead_unit);
        advance(ahead_at, 1);
        ahead_x += UNIT_COLUMNS;
        if (++ahead < end && ++ahead_unit == UNITS) {
            ahead_unit = 0;
            turn_to(++ahead_active, 0);
        }
    };
    if (ahead < end) turn_to(ahead_active, ahead_unit);
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) load(ring[slot], false);
    start_next_kernel();
    wait_for_previous_kernel();
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot)
        if (first + slot < end) {
            const int active = (first + slot) / UNITS;
            load_activations(ring[slot].x, x_of(active, group), first + slot - active * UNITS);
        }

    int active = first / UNITS, unit = first - active * UNITS;
    float sums[TOKEN_TILES][4] = {};
    u32 offsets = 0u;
    // Adds up what an expert has given to its tokens.
    auto finish = [&](const float (&scale)[2], int entries) {
        const float offset[2] = {float_of_bits(offsets << 16), float_of_bits(offsets & 0xFFFF0000u)};
        offsets = 0u;
        sync_warp();  // another lane may have added to the same token for another expert
#pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = 8 * tile + 2 * member + i;
                if (column < entries) {
                    const int entry = plan_start[active] + column;
                    const float weight = entry_weight[plan_entry[entry]];
                    float(&total)[16] = totals[warp_id()][entry_token[entry]];
                    const float upper = weight * (sums[tile][i] * scale[0] + offset[0]);
                    const float lower = weight * (sums[tile][i + 2] * scale[1] + offset[1]);
                    total[group] += upper;
                    total[group + 8] += lower;
                }
                sums[tile][i] = sums[tile][i + 2] = 0.f;
            }
    };
    for (int at = first; at < end;) {
#pragma unroll
        for (int slot = 0; slot < DEPTH; ++slot) {
            if (at >= end) break;
            const u16* const second = TOKEN_TILES == 2 ? x_of(active, 8 + group) : hidden;
            multiply(ring[slot].unit, ring[slot].x, second, unit, ring[slot].entries, sums);
            offsets |= ring[slot].offsets;
            ++at;
            if (++unit == UNITS || at == end) {
                finish(ring[slot].scale, ring[slot].entries);
                unit = 0;
                ++active;
            }
            load(ring[slot], true);
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
