// The first half of a mixture of experts: hidden = activation(gate, up) of each token's experts.
//
// A stack of 16 rows is eight of gate and the same eight of up, so that a lane holds both of what
// the activation joins. Blocks go through all stacks of all active experts; for the rest see
// dense.cu. SWIGLU: gpt-oss's, else SiLU.
#include "routing.cuh"
#include "weights.cuh"

constexpr int STACKS = WARPS / SPLIT;
constexpr int MINE = (UNITS + SPLIT * DEPTH - 1) / (SPLIT * DEPTH) * DEPTH;

#if SPLIT > 1
SHARED float partial[2][WARPS][TOKENS][16];
#endif

INLINE float activate(float gate, float up, float alpha, float limit) {
    if (SWIGLU) {
        // Comparisons that a NaN fails leave it as it is.
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < -limit ? -limit : up;
        return gate / (1.f + expf(-alpha * gate)) * (up + 1.f);
    }
    return gate / (1.f + expf(-gate)) * up;
}

// What a warp works on in one round.
struct Task {
    long long stack;  // in the packed array
    int begin, entries, row;  // entries of the expert; the first row of hidden
};

KERNEL __launch_bounds__(WARPS * 32, MIN_BLOCKS)
gate_up(const u16* x, const u8* weights, const u8* scales, const float* row_scale, const u16* bias,
        const Plan* plan, u16* hidden, int choices, int stacks, int x_stride, float alpha,
        float limit) {
    const int group = lane_id() >> 2, member = lane_id() & 3;
    const int slot_of_block = warp_id() / SPLIT, split = warp_id() % SPLIT;
    wait_for_previous_kernel();
    start_next_kernel();  // after the wait: the next kernel reads the plan at once
    const int groups = (stacks + STACKS - 1) / STACKS, step = gridDim.x;
    const int rounds = (plan->experts * groups - static_cast<int>(blockIdx.x) + step - 1) / step;

    auto task_of = [&](int round, int which) {
        const int at = blockIdx.x + round * step, active = at / groups;
        const int stack = min(at % groups * STACKS + which, stacks - 1);
        const int begin = plan->start[active];
        return Task{1ll * plan->expert[active] * stacks + stack, begin,
                    plan->start[active + 1] - begin, stack * 8};
    };
    auto rows_of = [&](const Task& task) {
        Rows rows;
#pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; ++tile) {
            const int at = task.begin + min(8 * tile + group, task.entries - 1);
            rows.x[tile] = x + 1ll * (plan->entry[at] / choices) * x_stride;
        }
        return rows;
    };

    Unit ring[DEPTH];
#if X_AHEAD
    Activations ring_x[DEPTH];
#endif
    int ahead_unit = split, ahead_round = 0;
    Task ahead{};
    Rows ahead_rows{};
    auto turn_to = [&](int round) {
        if (round >= rounds) return;
        ahead = task_of(round, slot_of_block);
        ahead_rows = rows_of(ahead);
    };
    auto load = [&](int slot) {
        if (ahead_round < rounds && ahead_unit < UNITS) {
            load_weights(ring[slot], weights + ahead.stack * WEIGHT_STRIDE,
                         scales + ahead.stack * SCALE_STRIDE, ahead_unit);
#if X_AHEAD
            load_activations(ring_x[slot], ahead_rows, ahead_unit, ahead.entries);
#endif
        }
        ahead_unit += SPLIT;
        if (slot == DEPTH - 1 && ahead_unit >= UNITS) {
            ahead_unit = split;
            turn_to(++ahead_round);
        }
    };
    turn_to(0);
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) load(slot);

    auto store = [&](const Task& task, int row, int at, float gate, float up) {
        if (at >= task.entries) return;
        const float* scale = row_scale + task.stack * 16 + row;
        gate *= scale[0];
        up *= scale[8];
        if (bias) {
            gate += bf16_to_float(bias[task.stack * 16 + row]);
            up += bf16_to_float(bias[task.stack * 16 + row + 8]);
        }
        hidden[1ll * plan->entry[task.begin + at] * stacks * 8 + task.row + row] =
            float_to_bf16(activate(gate, up, alpha, limit));
    };
    for (int round = 0; round < rounds; ++round) {
        const Task task = task_of(round, slot_of_block);
#if !X_AHEAD
        const Rows rows = rows_of(task);
#endif
        float sums[TOKEN_TILES][4] = {};
        for (int done = 0; done < MINE; done += DEPTH) {
#pragma unroll
            for (int slot = 0; slot < DEPTH; ++slot) {
                const int unit = split + (done + slot) * SPLIT;
                if (unit < UNITS) {
#if X_AHEAD
                    multiply(ring[slot], ring_x[slot], sums, task.entries);
#else
                    Activations activations;
                    load_activations(activations, rows, unit, task.entries);
                    multiply(ring[slot], activations, sums, task.entries);
#endif
                }
                load(slot);
            }
        }
#if SPLIT > 1
        float (&shared)[WARPS][TOKENS][16] = partial[round & 1];  // the other one may still be read
#pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                shared[warp_id()][8 * tile + 2 * member + (i & 1)][group + 8 * (i >> 1)] =
                    sums[tile][i];
        sync_block();
        for (int at = threadIdx.x; at < STACKS * TOKENS * 8; at += WARPS * 32) {
            const int which = at / (8 * TOKENS), token = (at >> 3) % TOKENS, row = at & 7;
            if ((blockIdx.x + round * step) % groups * STACKS + which >= stacks) continue;
            float gate = 0.f, up = 0.f;
#pragma unroll
            for (int part = 0; part < SPLIT; ++part) {
                gate += shared[which * SPLIT + part][token][row];
                up += shared[which * SPLIT + part][token][row + 8];
            }
            store(task_of(round, which), row, token, gate, up);
        }
#else
        if ((blockIdx.x + round * step) % groups * STACKS + slot_of_block < stacks)
#pragma unroll
            for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    store(task, group, 8 * tile + 2 * member + i, sums[tile][i], sums[tile][i + 2]);
#endif
    }
}
