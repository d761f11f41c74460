// The choice of experts for up to 16 tokens by their scores, and the plan, made by one block.
//
// A warp takes a token's CHOICES largest; then the block lists which experts are active and for
// whom, so that each is read only once. FLOAT_LOGITS: float32, else bf16. SIGMOID: scores are
// sigmoids, else a softmax. ALWAYS: as many experts, numbered behind the EXPERTS that have scores,
// that every token takes: its last choices, with a weight of 1, or where GATED with the sigmoid of
// the logit behind the EXPERTS. THREADS: of the block, no fewer than all of them.
#pragma once
#include "routing.cuh"

#ifndef ALWAYS
#define ALWAYS 0
#define GATED 0
#endif
constexpr int ALL_EXPERTS = EXPERTS + ALWAYS, ROUTED = CHOICES - ALWAYS;

constexpr bool KEYED = !FLOAT_LOGITS && !SIGMOID;  // scores of 16 bits leave room for their expert
constexpr int PER_LANE = (EXPERTS + 31) / 32;

SHARED u32 wanted[ALL_EXPERTS];                // by which tokens, a bit each
SHARED u8 choice_of[ALL_EXPERTS][MAX_TOKENS];  // as which of the token's choices
SHARED u32 before[THREADS / 32];               // of each warp: active experts << 16 | their entries

// Floats in an order of unsigned integers, none of them 0; NaN is above all, as in torch.topk.
INLINE u32 ordered(float value) {
    const u32 bits = bits_of_float(value);
    if (value != value) return 0xFFFFFFFFu;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A bf16 score and its expert in one number, larger if the score is, or equal and the expert before.
INLINE u32 keyed(u16 bits, int expert) {
    const u32 order = (bits & 0x7FFFu) > 0x7F80u ? 0xFFFFu  // NaN is above all
                      : bits & 0x8000u           ? ~bits & 0xFFFFu
                                                 : bits | 0x8000u;
    return order << 16 | (0xFFFFu - expert);
}
INLINE float score_of(u32 key) {
    const u32 order = key >> 16;
    return float_of_bits((order & 0x8000u ? order ^ 0x8000u : ~order) << 16);
}

// Before a barrier that comes before `choose`.
INLINE void forget_choices() {
    for (int at = threadIdx.x; at < ALL_EXPERTS; at += THREADS) wanted[at] = 0;
}

INLINE void choose(const void* logits, const float* correction, int* experts, float* weights,
                   Plan* plan, int tokens, int logit_stride, int renormalize, float scale) {
    const int lane = lane_id();
    for (int token = warp_id(); token < tokens; token += THREADS / 32) {
        float score[PER_LANE];
        u32 key[PER_LANE];
        float sum = 0.f, top = 0.f;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const int expert = i * 32 + lane;
            const long long at = 1ll * token * logit_stride + expert;
            key[i] = 0u;
            if (expert >= EXPERTS) continue;
            score[i] = FLOAT_LOGITS ? static_cast<const float*>(logits)[at]
                                    : bf16_to_float(static_cast<const u16*>(logits)[at]);
            if (SIGMOID) score[i] = 1.f / (1.f + expf(-score[i]));
            if (KEYED) {
                key[i] = keyed(static_cast<const u16*>(logits)[at], expert);
                continue;
            }
            key[i] = ordered(score[i] + (correction ? correction[expert] : 0.f));
        }
        float chosen = 0.f;  // lane c: the score of choice c
        int number = 0;
        if (KEYED) {
            u32 its = 0u;
#pragma unroll
            for (int choice = 0; choice < ROUTED; ++choice) {
                u32 best = 0u;
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) best = max(best, key[i]);
                best = warp_max(best);
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i)
                    if (key[i] == best) key[i] = 0u;
                if (lane == choice) its = best;
            }
            number = 0xFFFF - static_cast<int>(its & 0xFFFFu);
            chosen = score_of(its);
            top = shuffle(chosen, 0);
        }
        for (int choice = 0; choice < ROUTED && !KEYED; ++choice) {
            u32 best = 0u;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) best = max(best, key[i]);
            const u32 largest = warp_max(best);
            // Of equal ones the lowest number: the first i, then the lowest lane.
            int found = 0x7FFFFFFF;
#pragma unroll
            for (int i = PER_LANE - 1; i >= 0; --i)
                if (key[i] == largest) found = i * 32 + lane;
            const int expert = 0x7FFFFFFF - static_cast<int>(warp_max(0x7FFFFFFFu - found));
            float its = 0.f;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
                if (i * 32 + lane == expert) {
                    its = score[i];
                    key[i] = 0u;
                }
            its = shuffle(its, expert & 31);
            if (choice == 0) top = its;
            if (lane == choice) {
                chosen = its;
                number = expert;
            }
        }
        float weight = 0.f;
        if (lane < ROUTED) weight = SIGMOID ? chosen : expf(chosen - top);
        if (renormalize) {
            sum = warp_sum(weight);
        } else if (SIGMOID) {
            sum = 1.f;
        } else {
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
                if (i * 32 + lane < EXPERTS) sum += expf(score[i] - top);
            sum = warp_sum(sum);
        }
        weight = weight / sum * scale;
        if (ALWAYS && lane >= ROUTED) {
            number = EXPERTS + lane - ROUTED;
            weight = 1.f;
            if (GATED) {
                const long long at = 1ll * token * logit_stride + EXPERTS;
                const float gate = FLOAT_LOGITS ? static_cast<const float*>(logits)[at]
                                                : bf16_to_float(static_cast<const u16*>(logits)[at]);
                weight = 1.f / (1.f + expf(-gate));
            }
        }
        if (lane < CHOICES) {
            experts[token * CHOICES + lane] = number;
            weights[token * CHOICES + lane] = weight;
            atomicOr(&wanted[number], 1u << token);
            choice_of[number][token] = static_cast<u8>(lane);
        }
    }
    sync_block();
    // Thread i lists expert i: what goes before it is a sum over lower experts.
    const u32 by = threadIdx.x < ALL_EXPERTS ? wanted[threadIdx.x] : 0u;
    u32 here = by ? 0x10000u + count_bits(by) : 0u;  // active, entries
    const u32 own = here;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const u32 left = shuffle(here, (lane - offset) & 31);
        if (lane >= offset) here += left;
    }
    if (lane == 31) before[warp_id()] = here;
    sync_block();
    u32 rank = here - own, all = 0u;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) {
        if (i < warp_id()) rank += before[i];
        all += before[i];
    }
    const int active = all >> 16, entries = all & 0xFFFFu;
    if (threadIdx.x == 0) plan->experts = active;
    // Behind the last expert nothing is left unwritten that blocks copy before they know how many.
    for (int at = active + threadIdx.x; at <= entries; at += THREADS) {
        plan->start[at] = entries;
        if (at < entries) plan->expert[at] = 0;
    }
    if (!by) return;
    plan->expert[rank >> 16] = threadIdx.x;
    int at = rank & 0xFFFFu;
    plan->start[rank >> 16] = at;
    for (u32 left = by; left; left &= left - 1u) {
        const int user = __ffs(static_cast<int>(left)) - 1;
        plan->entry[at++] = user * CHOICES + choice_of[threadIdx.x][user];
    }
}
