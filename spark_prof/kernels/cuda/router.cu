// The RMS norm of x + residual, the router's matrix, the choice of experts and the plan.
//
// Each block makes the norm of all tokens for itself, a thread eight columns of it, and the logits
// of EACH experts; the one that is through last makes the choice. Every sum has a fixed order, which
// does not depend on how many tokens there are; TOGETHER of them are in registers at a time. As
// vLLM compiles it the norm is rounded to bf16 once (Inductor leaves out the rounding before the
// weight), and unless FLOAT_LOGITS the logits are, the bias added: that is what vLLM 0.26 gives to
// the choice of gpt-oss (ReplicatedLinear) and of Qwen3-MoE. COLUMNS: a multiple of 8, at most 8
// times THREADS.
#include "choice.cuh"
#include "vectors.cuh"

constexpr int LOGITS = EXPERTS + GATED;  // that of the gate of what everybody takes is the last

constexpr int WARPS = THREADS / 32;
constexpr int VALUES = EACH * TOGETHER;
static_assert(VALUES <= 32 && !(VALUES & (VALUES - 1)), "as `summed` takes them");
static_assert(MAX_TOKENS * EACH <= THREADS && COLUMNS <= 8 * THREADS, "a thread each");

SHARED float squares[2][WARPS][TOGETHER];  // by turns: one may still be read
SHARED float products[WARPS][MAX_TOKENS][EACH];
SHARED u32 is_last;

// The warp's sums of COUNT values, that of i in lane i * 32 / COUNT: halves of the lanes give each
// other what they do not keep, so that this takes few more shuffles than one sum.
template <int COUNT>
INLINE float summed(float (&value)[COUNT]) {
#pragma unroll
    for (int step = 0; step < 5; ++step) {
        const u32 mask = 16u >> step;
        const int kept = COUNT >> (step + 1);
        if (kept == 0) value[0] += shuffle_xor(value[0], mask);
#pragma unroll
        for (int i = 0; i < kept; ++i) {
            const bool upper = lane_id() & mask;
            const float given = upper ? value[i] : value[i + kept];
            value[i] = (upper ? value[i + kept] : value[i]) + shuffle_xor(given, mask);
        }
    }
    return value[0];
}

KERNEL __launch_bounds__(THREADS, 1)
norm_route(const u16* x, const u16* residual, const float* norm, const u16* gate, const u16* bias,
           const u16* shared_gate,
           const float* correction, u16* stream, u16* normed, int* experts, float* weights,
           Plan* plan, void* logits, u32* finished, int tokens, int x_stride, int residual_stride,
           float epsilon, int renormalize, float scale) {
    const int first = blockIdx.x * EACH, column = threadIdx.x * 8;
    const bool inside = column < COLUMNS;
    const uint4 none = make_uint4(0u, 0u, 0u, 0u);
    // What no kernel writes is loaded before the kernel before has ended.
    uint4 rows[EACH], factors[2];
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        rows[i] = inside && first + i < EXPERTS
                      ? load_once_16(gate + 1ll * (first + i) * COLUMNS + column)
                  : inside && first + i < LOGITS ? load_once_16(shared_gate + column)
                                                 : none;
#pragma unroll
    for (int i = 0; i < 2; ++i) factors[i] = inside ? load_constant_16(norm + column + 4 * i) : none;
    const int token_of = threadIdx.x / EACH, which = threadIdx.x % EACH, expert = first + which;
    const float offset = bias && expert < EXPERTS ? bf16_to_float(bias[expert]) : 0.f;
    forget_choices();
    start_next_kernel();
    wait_for_previous_kernel();

    for (int begin = 0; begin < tokens; begin += TOGETHER) {
        uint4 own[TOGETHER], held[TOGETHER];
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            const int token = begin + t;
            const bool there = inside && token < tokens;
            own[t] = there ? load_16(x + 1ll * token * x_stride + column) : none;
            held[t] = there && residual
                          ? load_16(residual + 1ll * token * residual_stride + column)
                          : none;
        }
        float square[TOGETHER] = {};
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            float sum[8];
            add(own[t], held[t], sum);
#pragma unroll
            for (int k = 0; k < 8; ++k) square[t] += sum[k] * sum[k];
        }
        float(&shared)[WARPS][TOGETHER] = squares[begin / TOGETHER & 1];
        const float its = summed(square);
        if (lane_id() % (32 / TOGETHER) == 0) shared[warp_id()][lane_id() * TOGETHER / 32] = its;
        sync_block();
        float dots[VALUES] = {};
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            const int token = begin + t;
            float total = 0.f, sum[8];
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) total += shared[warp][t];
            const float inverse = rsqrtf(total * (1.f / COLUMNS) + epsilon);
            add(own[t], held[t], sum);
            // Block by block a token's rows are written.
            const bool writes = inside && token < tokens && token % gridDim.x == blockIdx.x;
            const long long at = 1ll * token * COLUMNS + column;
            if (writes) *reinterpret_cast<uint4*>(stream + at) = packed(sum);
            const u32 bits[8] = {factors[0].x, factors[0].y, factors[0].z, factors[0].w,
                                 factors[1].x, factors[1].y, factors[1].z, factors[1].w};
#pragma unroll
            for (int k = 0; k < 8; ++k) sum[k] = sum[k] * inverse * float_of_bits(bits[k]);
            const uint4 rounded = packed(sum);
            if (writes) *reinterpret_cast<uint4*>(normed + at) = rounded;
            unpack(rounded, sum);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                float row[8];
                unpack(rows[i], row);
#pragma unroll
                for (int k = 0; k < 8; ++k) dots[t * EACH + i] += sum[k] * row[k];
            }
        }
        const float product = summed(dots);
        const int value = lane_id() * VALUES / 32;
        if (lane_id() % (32 / VALUES) == 0 && begin + value / EACH < tokens)
            products[warp_id()][begin + value / EACH][value % EACH] = product;
    }
    sync_block();
    if (token_of < tokens && expert < LOGITS) {
        float logit = 0.f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) logit += products[warp][token_of][which];
        logit += offset;
        const int at = token_of * LOGITS + expert;
        if (FLOAT_LOGITS)
            static_cast<float*>(logits)[at] = logit;
        else
            static_cast<u16*>(logits)[at] = float_to_bf16(logit);
    }
    sync_block();
    if (threadIdx.x == 0) is_last = add_in_order(finished, 1u) == gridDim.x - 1;
    sync_block();
    if (!is_last) return;
    if (threadIdx.x == 0) *finished = 0u;  // for the next launch
    choose(logits, correction, experts, weights, plan, tokens, LOGITS, renormalize, scale);
}
