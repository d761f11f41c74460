// The first half of a mixture of experts: hidden = activation(gate, up) of each token's experts.
//
// A stack of 16 rows is eight of gate and the same eight of up, so that a lane holds both of what
// the activation joins; without a gate it is 16 rows of up. Blocks go through all stacks of all
// active experts, and load weights and activations ahead across their borders; for the rest see
// split.cuh. BF16 is read where the model has it, all rows of an expert's gate before those of up;
// its experts from `apart` on are not behind the others, but where `scales` points to.
// ACTIVATION: 0 SiLU, 1 gpt-oss's SwiGLU, 2 the square of what is above 0, without a gate.
#include "plan.cuh"
#include "split.cuh"

#define SWIGLU 1
#define RELU2 2

constexpr bool GATED = ACTIVATION != RELU2;
constexpr int ROWS = GATED ? 8 : 16;  // of the result, that a stack makes
// Rows of a stack that a thread finishes at a time, 8 apart.
constexpr int HALVES = GATED || SPLIT == 1 ? 2 : 1;

#if SPLIT > 1
// Results of a thread: a row of gate and one of up, or one of up alone, for one token.
constexpr int OUTPUTS = (STACKS * TOKENS * ROWS + WARPS * 32 - 1) / (WARPS * 32);
INLINE int output_stack(int i) { return (threadIdx.x + i * WARPS * 32) / (ROWS * TOKENS); }
INLINE int output_row(int i) { return threadIdx.x & (ROWS - 1); }
#else
constexpr int OUTPUTS = 1;  // for all tokens
INLINE int output_stack(int i) { return warp_id(); }
INLINE int output_row(int i) { return lane_id() >> 2; }
#endif

INLINE float activate(float gate, float up, float alpha, float limit) {
    if (ACTIVATION == SWIGLU) {
        // Comparisons that a NaN fails leave it as it is.
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < -limit ? -limit : up;
        return gate / (1.f + expf(-alpha * gate)) * (up + 1.f);
    }
    return gate / (1.f + expf(-gate)) * up;
}

INLINE float square_above_0(float up) {
    up = up < 0.f ? 0.f : up;  // a NaN stays
    return up * up;
}

KERNEL __launch_bounds__(WARPS * 32, MIN_BLOCKS)
gate_up(const u16* x, const u8* weights, const u8* scales, const float* row_scale, const u16* bias,
        const Plan* plan, u16* hidden, int tokens, int choices, int stacks, int x_stride,
        float alpha, float limit, int apart) {
    const int group = lane_id() >> 2, member = lane_id() & 3;
    const int own = warp_id() / SPLIT, split = warp_id() % SPLIT;
    const int groups = (stacks + STACKS - 1) / STACKS, step = gridDim.x;
    const int begin = blockIdx.x / groups;
    wait_for_previous_kernel();
    start_next_kernel();  // after the wait: the next kernel reads the plan at once
    // The first expert's number is asked for beside the plan, and its weights before the copy of the
    // plan is complete. Volatile: else it is asked for only once it is known to be needed.
    const int expert = *static_cast<const volatile int*>(plan->expert + begin);
    const PlanPart part = ask_plan(plan, threadIdx.x, tokens * choices);
    const long long eighth = 16ll * COLUMNS * (FORMAT == BF16 && GATED ? stacks : 1);
    // Of BF16 a stack further in an expert is but eight rows further: by how many it is nearer.
    auto back_of = [&](int stack) {
        return FORMAT == BF16 && GATED ? min(stack, stacks - 1) : 0;
    };
    // place: of a stack among all experts'.
    auto unit_at = [&](int place, int back, int unit) {
        return lane_unit(stack_at(weights, scales, place, apart * stacks) - back * (16ll * COLUMNS),
                         scales + 1ll * place * SCALE_STRIDE, unit);
    };
    Unit ring[DEPTH];
    if (begin < part.experts) {
        const int stack = (blockIdx.x - begin * groups) * STACKS + own;
        const LaneUnit first =
            unit_at(expert * stacks + min(stack, stacks - 1), back_of(stack), split);
#pragma unroll
        for (int slot = 0; slot < DEPTH; ++slot)
            if (split + slot * SPLIT < UNITS)
                load_weights(ring[slot], first, slot * SPLIT, split + slot * SPLIT, eighth);
    }
    put_plan(part, plan, tokens * choices, choices);
    const int rounds = (plan_experts * groups - static_cast<int>(blockIdx.x) + step - 1) / step;

    // What a round is about: one expert, and a group of STACKS of its stacks.
    struct Task {
        int active, group;
    };
    const Task to_next = {step / groups, step % groups};
    auto next = [&](Task& task) {
        task.active += to_next.active;
        task.group += to_next.group;
        if (task.group < groups) return;
        task.group -= groups;
        ++task.active;
    };
    // A stack beyond the last is the last again, and is not stored.
    auto place_of = [&](const Task& task, int which) {
        return plan_expert[task.active] * stacks + min(task.group * STACKS + which, stacks - 1);
    };
    auto x_of = [&](const Task& task, int which) {
        return x + 1ll * entry_token[entry_of(task.active, which)] * x_stride;
    };

    Activations ring_x[DEPTH];
    const Task first_task = {begin, static_cast<int>(blockIdx.x) - begin * groups};
    int ahead_unit = split, ahead_round = 0;  // of the ring's first slot
    Task ahead_task = first_task;
    LaneUnit ahead = {weights, scales};
    const u16* ahead_x = x;
    auto turn = [&] {
        if (ahead_round >= rounds) return;
        ahead = unit_at(place_of(ahead_task, own), back_of(ahead_task.group * STACKS + own), split);
        ahead_x = lane_activations(x_of(ahead_task, group), split);
    };
    auto load = [&](int slot, bool with_weights) {
        const int later = slot * SPLIT, unit = ahead_unit + later;
        if (ahead_round < rounds && (WHOLE_RINGS || unit < UNITS)) {
            if (with_weights) load_weights(ring[slot], ahead, later, unit, eighth);
            load_activations(ring_x[slot], ahead_x, later, unit);
        }
        if (slot < DEPTH - 1) return;
        ahead_unit += RING;
        // Not a turn earlier where the last units do not suffice for all warps.
        if (ahead_unit >= UNITS_A_WARP * SPLIT) {
            ahead_unit = split;
            ++ahead_round;
            next(ahead_task);
            turn();
        } else {
            advance(ahead, RING);
            ahead_x += RING * UNIT_COLUMNS;
        }
    };
    turn();
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) load(slot, false);

    Task task = first_task;
    for (int round = 0; round < rounds; ++round, next(task)) {
        const int entries = entries_of(task.active);
        // What the results need is asked for now, so that nobody waits for it at the end.
        float scale[OUTPUTS][HALVES], offset[OUTPUTS][HALVES];
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i)
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                const int row = place_of(task, output_stack(i)) * 16 + output_row(i) + 8 * half;
                scale[i][half] = FORMAT == BF16 ? 1.f : row_scale[row];
                offset[i][half] = bias ? bf16_to_float(bias[row]) : 0.f;
            }
        const u16* const second_x = TOKEN_TILES == 2 ? x_of(task, 8 + group) : x;
        float sums[TOKEN_TILES][4] = {};
        for (int done = 0; done < UNITS_A_WARP; done += DEPTH) {
#pragma unroll
            for (int slot = 0; slot < DEPTH; ++slot) {
                const int unit = split + (done + slot) * SPLIT;
                if (WHOLE_RINGS || unit < UNITS)
                    multiply(ring[slot], ring_x[slot], second_x, unit, entries, sums);
                load(slot, true);
            }
        }
        // Without a gate both are rows of up.
        auto store = [&](int i, int token, float gate, float up) {
            const int stack = task.group * STACKS + output_stack(i);
            if (token >= entries || stack >= stacks) return;
            gate = gate * scale[i][0] + offset[i][0];
            up = up * scale[i][HALVES - 1] + offset[i][HALVES - 1];
            const long long row = plan_entry[entry_of(task.active, token)];
            u16* const to = hidden + (row * stacks + stack) * ROWS + output_row(i);
            to[0] = float_to_bf16(GATED ? activate(gate, up, alpha, limit) : square_above_0(gate));
            if (!GATED && HALVES == 2) to[8] = float_to_bf16(square_above_0(up));
        };
#if SPLIT > 1
        Partial& shared = partial[round & 1];
        share_sums(shared, sums, group, member);
        sync_block();
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i) {
            const int token = (threadIdx.x + i * WARPS * 32) / ROWS % TOKENS;
            if (output_stack(i) >= STACKS || token >= entries) continue;
            float gate = 0.f, up = 0.f;
#pragma unroll
            for (int part = 0; part < SPLIT; ++part) {
                const float(&sum)[16] = shared[output_stack(i) * SPLIT + part][token];
                gate += sum[output_row(i)];
                if (HALVES == 2) up += sum[output_row(i) + 8];
            }
            store(i, token, gate, up);
        }
#else
#pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                store(0, 8 * tile + 2 * member + i, sums[tile][i], sums[tile][i + 2]);
#endif
    }
}
