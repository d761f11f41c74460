// A decoder layer from attention to the next attention in one kernel, for up to 4 tokens: the o matrix,
// the norm of the residual stream, the router and its choice, gate and up, down, the next norm and qkv.
//
// All blocks are in the kernel together, as many as the GPU holds at a time, and go from phase to phase
// over barriers of the grid. Weights depend on nothing but the choice: before a block waits it has its
// next units in flight, and what PREFETCH names on their way to L2: 1 o while the kernel before runs,
// 2 gate and up at the choice, 4 down, 8 qkv while the router works, 16 qkv as its phase comes.
//
// Blocks take equal runs of units of o and of down, whose stacks (of all active experts for down) are
// fewer than two blocks' each: what two blocks have of one is added by all that read it, in `parts`. Of
// the others they take whole stacks. Norm and choice each block makes for itself. An expert's products
// are made for all tokens, and those taken that chose it. Roundings are those of the single kernels.
// ROOM: for tokens; 1, 2 or 4. EXPERTS: a multiple of 8. HIDDEN: at most 8 times the threads.
constexpr int THREADS = WARPS * 32;
#define TOKEN_TILES 1
#define FLOAT_LOGITS 0
#define SIGMOID 0
#include "activation.cuh"
#include "choice.cuh"
#include "grid.cuh"
#include "share.cuh"
#include "vectors.cuh"

namespace o {
#define FORMAT O_FORMAT
#define COLUMNS O_COLUMNS
#define DEPTH O_DEPTH
#define X_AHEAD 0
#include "units.cuh"
#include "phase.cuh"
#undef FORMAT
#undef COLUMNS
#undef DEPTH
}  // namespace o

namespace qkv {
#define FORMAT QKV_FORMAT
#define COLUMNS HIDDEN
#define DEPTH QKV_DEPTH
#include "units.cuh"
#include "phase.cuh"
#undef FORMAT
#undef DEPTH
}  // namespace qkv

namespace up {
#define FORMAT EXPERT_FORMAT
#define DEPTH UP_DEPTH
#include "units.cuh"
#include "phase.cuh"
#undef COLUMNS
#undef DEPTH
#undef X_AHEAD
}  // namespace up

namespace down {
#define COLUMNS INNER
#define DEPTH DOWN_DEPTH
#define X_AHEAD 1
#include "units.cuh"
#include "phase.cuh"
#undef FORMAT
#undef COLUMNS
#undef DEPTH
#undef X_AHEAD
}  // namespace down

constexpr int HIDDEN_STACKS = HIDDEN / 16, UP_STACKS = INNER / 8;
constexpr int TOGETHER = ROOM < 2 ? ROOM : 2;  // rows that are normed at a time
constexpr int MOST_ENTRIES = ROOM * CHOICES;
// Of a row: two rows then begin 64 bytes apart in the banks.
constexpr int O_STRIDE = O_COLUMNS + (96 - O_COLUMNS % 64) % 64;
constexpr int ROW_STRIDE = HIDDEN + (96 - HIDDEN % 64) % 64;

// What o takes, and after it what the rest of the layer does.
union Rows {
    u16 attended[ROOM][O_STRIDE];
    struct {
        u16 normed[ROOM][ROW_STRIDE];  // rows and logits are of whole 16 bytes
        u16 logits[ROOM * EXPERTS];
        Plan plan;
        float weights[MOST_ENTRIES];
        int experts[MOST_ENTRIES];
    } then;
};
SHARED __align__(16) Rows rows;
SHARED float squares[2][WARPS][TOGETHER];  // by turns: one may still be read
SHARED float products[WARPS][ROOM];
static_assert(sizeof(rows) + sizeof(corner) + sizeof(squares) + sizeof(products) + sizeof(wanted) +
                      sizeof(choice_of) + sizeof(before) <= 48 * 1024,
              "rows and plan of a block fit into shared memory");
static_assert(HIDDEN <= 8 * THREADS && EXPERTS <= THREADS, "a thread has eight columns, an expert");

// A block's run of units of that many stacks, whole ones or not.
INLINE Run whole_stacks(int stacks, int units) {
    const int index = blockIdx.x, blocks = gridDim.x;
    return {stacks * index / blocks * units, stacks * (index + 1) / blocks * units};
}
INLINE Run equal_units(int stacks, int units) {
    const int index = blockIdx.x, blocks = min(static_cast<int>(gridDim.x), stacks);
    if (index >= blocks) return {0, 0};
    return {stacks * units * index / blocks, stacks * units * (index + 1) / blocks};
}

// Writes a stack's sums to the part that is the block's.
INLINE void write_part(float* parts, const Run& block, int stack, int units, bool from_start,
                       int tokens) {
    const int end = (stack + 1) * units, part = block.first > stack * units;
#pragma unroll 1
    for (int at = lane_id(); at < 16 * tokens; at += 32) {
        const int row = at & 15, token = at >> 4;
        float* const to = parts + (part * tokens + token) * HIDDEN + 16 * stack + row;
        *to = sum_of(block, from_start, end, token, row);
        if (!part && block.end >= end) to[tokens * HIDDEN] = 0.f;
    }
}

INLINE void load_fresh_floats(float (&into)[8], const float* from) {
    const uint4 low = load_fresh_16(from), high = load_fresh_16(from + 4);
    const u32 bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int k = 0; k < 8; ++k) into[k] = float_of_bits(bits[k]);
}

// The norm of the residual stream, which is what `parts` add up to, rounded, and the residual, to shared
// memory. A thread has eight columns.
INLINE void norm_rows(const float* parts, const u16* residual, const float (&factors)[8],
                      u16* stream, float epsilon, int tokens) {
    const int column = threadIdx.x * 8;
    const bool inside = column < HIDDEN;
#pragma unroll
    for (int first = 0; first < ROOM; first += TOGETHER) {
        if (first >= tokens) break;
        float sum[TOGETHER][8] = {};
        float(&shared)[WARPS][TOGETHER] = squares[first / TOGETHER & 1];
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            const int token = first + t;
            float square = 0.f;
            if (inside && token < tokens) {
                float own[8], more[8];
                load_fresh_floats(own, parts + token * HIDDEN + column);
                load_fresh_floats(more, parts + (tokens + token) * HIDDEN + column);
                const uint4 held = load_fresh_16(residual + token * HIDDEN + column);
#pragma unroll
                for (int k = 0; k < 8; ++k) own[k] += more[k];
                add(packed(own), held, sum[t]);
#pragma unroll
                for (int k = 0; k < 8; ++k) square += sum[t][k] * sum[t][k];
            }
            square = warp_sum(square);
            if (lane_id() == 0) shared[warp_id()][t] = square;
        }
        sync_block();
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            const int token = first + t;
            if (!inside || token >= tokens) continue;
            float total = 0.f;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) total += shared[warp][t];
            const float inverse = rsqrtf(total * (1.f / HIDDEN) + epsilon);
            if (token % gridDim.x == blockIdx.x)
                *reinterpret_cast<uint4*>(stream + token * HIDDEN + column) = packed(sum[t]);
#pragma unroll
            for (int k = 0; k < 8; ++k) sum[t][k] = sum[t][k] * inverse * factors[k];
            *reinterpret_cast<uint4*>(&rows.then.normed[token][column]) = packed(sum[t]);
        }
    }
}

// The logits of the block's experts. row: the first one's eight columns of this thread.
INLINE void make_logits(uint4 row, const u16* gate, const u16* gate_bias, u16* logits, int tokens) {
    const int column = threadIdx.x * 8;
    const bool inside = column < HIDDEN;
    for (int expert = blockIdx.x; expert < EXPERTS; expert += gridDim.x) {
        if (expert >= gridDim.x && inside) row = load_once_16(gate + 1ll * expert * HIDDEN + column);
        const float offset = gate_bias ? bf16_to_float(gate_bias[expert]) : 0.f;
        float factors[8];
        unpack(row, factors);
#pragma unroll
        for (int token = 0; token < ROOM; ++token) {
            float dot = 0.f, values[8];
            if (inside && token < tokens) {
                unpack(*reinterpret_cast<const uint4*>(&rows.then.normed[token][column]), values);
#pragma unroll
                for (int k = 0; k < 8; ++k) dot += values[k] * factors[k];
            }
            dot = warp_sum(dot);
            if (lane_id() == 0) products[warp_id()][token] = dot;
        }
        sync_block();
        if (threadIdx.x < tokens) {
            float logit = 0.f;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) logit += products[warp][threadIdx.x];
            logits[threadIdx.x * EXPERTS + expert] = float_to_bf16(logit + offset);
        }
        sync_block();
    }
}

// Every block makes the same choice.
INLINE void choose_experts(const u16* logits, int tokens, int renormalize, float scale) {
    for (int at = threadIdx.x; at < tokens * EXPERTS / 8; at += THREADS)
        reinterpret_cast<uint4*>(rows.then.logits)[at] = load_fresh_16(logits + 8 * at);
    forget_choices();
    sync_block();
    choose(rows.then.logits, nullptr, rows.then.experts, rows.then.weights, &rows.then.plan, tokens,
           EXPERTS, renormalize, scale);
}

KERNEL __launch_bounds__(THREADS, MIN_BLOCKS)
layer(const u16* seen, const u8* o_weights, const u8* o_scales, const float* o_row_scale,
      const u16* o_bias, const u16* residual, const float* norm, const u16* gate,
      const u16* gate_bias, const u8* up_weights, const u8* up_scales, const float* up_row_scale,
      const u16* up_bias, const u8* down_weights, const u8* down_scales,
      const float* down_row_scale, const u16* down_bias, const float* next_norm,
      const u8* qkv_weights, const u8* qkv_scales, const float* qkv_row_scale, const u16* qkv_bias,
      float* o_parts, u16* middle, u16* logits, u16* hidden, float* down_parts, u16* next_stream,
      u16* out, u32* counter, int tokens, int seen_stride, int qkv_rows, int renormalize,
      float epsilon, float next_epsilon, float scale, float alpha, float limit) {
    const int group = lane_id() >> 2, member = lane_id() & 3, own_row = min(group, tokens - 1);
    const int column = threadIdx.x * 8;
    const bool inside = column < HIDDEN;
    auto itself = [](int item) { return item; };

    const o::Matrix o_matrix = {o_weights, o_scales, o_row_scale, o_bias};
    const qkv::Matrix qkv_matrix = {qkv_weights, qkv_scales, qkv_row_scale, qkv_bias};
    u32 come;
    {
        const Run block = equal_units(HIDDEN_STACKS, o::UNITS), run = run_of(block, warp_id());
        o::Unit ring[O_DEPTH];
        o::Ahead ahead = o::begin(ring, o_matrix, run, itself);
        if (PREFETCH & 1) o::prefetch(o_matrix, block, itself);
        wait_for_previous_kernel();
        for (int at = threadIdx.x; at < tokens * (O_COLUMNS / 8); at += THREADS) {
            const int token = at / (O_COLUMNS / 8), first = 8 * (at - token * (O_COLUMNS / 8));
            *reinterpret_cast<uint4*>(&rows.attended[token][first]) =
                load_16(seen + 1ll * token * seen_stride + first);
        }
        sync_block();
        auto settle = [&](int stack, bool from_start) {
            write_part(o_parts, block, stack, o::UNITS, from_start, tokens);
        };
        o::stream(ring, ahead, o_matrix, run, itself,
                  [&](int) { return rows.attended[own_row]; },
                  [&](int stack, const float (&sums)[4]) {
                      settle_or_keep(run, stack, o::UNITS, sums, settle);
                  });
        settle_parts(block, run, o::UNITS, settle);
        come = arrive(counter);
    }
    {
        float factors[8] = {};
        uint4 row = zeros();
        if (inside) load_floats(factors, norm + column);
        if (inside && blockIdx.x < EXPERTS)
            row = load_once_16(gate + 1ll * blockIdx.x * HIDDEN + column);
        if (PREFETCH & 8) qkv::prefetch(qkv_matrix, whole_stacks(qkv_rows / 16, qkv::UNITS), itself);
        if (blockIdx.x == 0 && threadIdx.x == 0) prefetch_to_l2(next_norm, 4 * HIDDEN);
        meet(counter, come);
        norm_rows(o_parts, residual, factors, middle, epsilon, tokens);
        make_logits(row, gate, gate_bias, logits, tokens);
        come = arrive(counter);
        meet(counter, come);
        choose_experts(logits, tokens, renormalize, scale);
        sync_block();
    }
    const int active = rows.then.plan.experts;
    {
        const up::Matrix matrix = {up_weights, up_scales, up_row_scale, up_bias};
        const Run block = whole_stacks(active * UP_STACKS, up::UNITS);
        const Run run = run_of(block, warp_id());
        auto place = [&](int item) {
            const int which = item / UP_STACKS;
            return rows.then.plan.expert[which] * UP_STACKS + (item - which * UP_STACKS);
        };
        up::Unit ring[UP_DEPTH];
        up::Ahead ahead = up::begin(ring, matrix, run, place);
        if (PREFETCH & 2) up::prefetch(matrix, block, place);
        auto settle = [&](int item, bool from_start) {
            const int which = item / UP_STACKS, stack = item - which * UP_STACKS;
#pragma unroll 1
            for (int at = lane_id(); at < 8 * tokens; at += 32) {
                const int token = at >> 3, row = at & 7, end = (item + 1) * up::UNITS;
                const float gate = sum_of(block, from_start, end, token, row);
                const float up = sum_of(block, from_start, end, token, row + 8);
                hidden[(which * tokens + token) * INNER + 8 * stack + row] =
                    float_to_bf16(activate(gate, up, alpha, limit));
            }
        };
        up::stream(ring, ahead, matrix, run, place,
                   [&](int) { return rows.then.normed[own_row]; },
                   [&](int item, const float (&sums)[4]) {
                       settle_or_keep(run, item, up::UNITS, sums, settle);
                   });
        settle_parts(block, run, up::UNITS, settle);
        come = arrive(counter);
    }
    {
        const down::Matrix matrix = {down_weights, down_scales, down_row_scale, down_bias};
        const int units = active * down::UNITS;  // of a stack, expert by expert
        const Run block = equal_units(HIDDEN_STACKS, units), run = run_of(block, warp_id());
        auto place = [&](int item) {
            const int stack = item / active;
            return rows.then.plan.expert[item - stack * active] * HIDDEN_STACKS + stack;
        };
        down::Unit ring[DOWN_DEPTH];
        down::Ahead ahead = down::begin(ring, matrix, run, place);
        if (PREFETCH & 4) down::prefetch(matrix, block, place);
        meet(counter, come);
        auto settle = [&](int stack, bool from_start) {
            write_part(down_parts, block, stack, units, from_start, tokens);
        };
        float total[4] = {};
        down::stream(ring, ahead, matrix, run, place,
                     [&](int item) {
                         return hidden + 1ll * (item % active * tokens + own_row) * INNER;
                     },
                     [&](int item, const float (&sums)[4]) {
                         const int stack = item / active, which = item - stack * active;
                         const int expert = rows.then.plan.expert[which];
#pragma unroll
                         for (int i = 0; i < 4; ++i) {
                             const int token = 2 * member + (i & 1);
                             if (token < tokens && wanted[expert] >> token & 1)
                                 total[i] += rows.then.weights[token * CHOICES +
                                                               choice_of[expert][token]] *
                                             sums[i];
                         }
                         if (which + 1 < active && (item + 1) * down::UNITS < run.end) return;
                         settle_or_keep(run, stack, units, total, settle);
#pragma unroll
                         for (int i = 0; i < 4; ++i) total[i] = 0.f;
                     });
        settle_parts(block, run, units, settle);
        come = arrive(counter);
    }
    {
        const Run block = whole_stacks(qkv_rows / 16, qkv::UNITS), run = run_of(block, warp_id());
        qkv::Unit ring[QKV_DEPTH];
        qkv::Ahead ahead = qkv::begin(ring, qkv_matrix, run, itself);
        if (PREFETCH & 16) qkv::prefetch(qkv_matrix, block, itself);
        start_next_kernel();
        meet(counter, come);
        float factors[8] = {};
        if (inside) load_floats(factors, next_norm + column);
        norm_rows(down_parts, middle, factors, next_stream, next_epsilon, tokens);
        sync_block();
        auto settle = [&](int stack, bool from_start) {
#pragma unroll 1
            for (int at = lane_id(); at < 16 * tokens; at += 32) {
                const int row = at & 15, token = at >> 4, end = (stack + 1) * qkv::UNITS;
                out[1ll * token * qkv_rows + 16 * stack + row] =
                    float_to_bf16(sum_of(block, from_start, end, token, row));
            }
        };
        qkv::stream(ring, ahead, qkv_matrix, run, itself,
                    [&](int) { return rows.then.normed[own_row]; },
                    [&](int stack, const float (&sums)[4]) {
                        settle_or_keep(run, stack, qkv::UNITS, sums, settle);
                    });
        settle_parts(block, run, qkv::UNITS, settle);
    }
}
