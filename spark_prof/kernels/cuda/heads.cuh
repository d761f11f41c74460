// Norms and rotates heads of SIZE features, a warp a head: bf16 in memory to bf16 in shared memory.
//
// A lane has PAIRS pairs of features that are rotated with each other: i and i + rotated / 2 where
// `halves` is set, else neighbours; those from `rotated` on stay as they are.
#pragma once
#include "vectors.cuh"

constexpr int PAIRS = (SIZE / 2 + 31) / 32;
constexpr int AT_A_TIME = 2;  // heads of a warp whose loads are in flight together

struct Rotation {
    int rotated;
    bool halves;
    float cosine[PAIRS], sine[PAIRS];
};

INLINE int pair_of(int j) { return lane_id() + 32 * j; }
INLINE bool is_pair(int j) { return SIZE % 64 == 0 || pair_of(j) < SIZE / 2; }
INLINE int low_of(const Rotation& by, int j) {
    const int i = pair_of(j);
    return by.halves && i < by.rotated / 2 ? i : 2 * i;
}
INLINE int high_of(const Rotation& by, int j) {
    const int i = pair_of(j);
    return by.halves && i < by.rotated / 2 ? i + by.rotated / 2 : 2 * i + 1;
}

// cos_sin: of all positions rotated / 2 cosines, then as many sines, in float or bf16.
INLINE Rotation rotation_at(long long position, const void* cos_sin, bool is_float, int rotated,
                            bool halves) {
    Rotation by = {rotated, halves};
    auto entry = [&](long long at) {
        return is_float ? static_cast<const float*>(cos_sin)[at]
                        : bf16_to_float(static_cast<const u16*>(cos_sin)[at]);
    };
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        const bool turns = pair_of(j) < rotated / 2;
        const long long at = position * rotated + pair_of(j);
        by.cosine[j] = turns ? entry(at) : 1.f;
        by.sine[j] = turns ? entry(at + rotated / 2) : 0.f;
    }
    return by;
}

// A lane's features of one head.
struct Head {
    float low[PAIRS], high[PAIRS];
};

INLINE Head head_at(const u16* from, const Rotation& by) {
    Head got;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        got.low[j] = is_pair(j) ? bf16_to_float(from[low_of(by, j)]) : 0.f;
        got.high[j] = is_pair(j) ? bf16_to_float(from[high_of(by, j)]) : 0.f;
    }
    return got;
}
// What a norm multiplies a head's features with; null for ones.
INLINE Head weights_at(const float* from, const Rotation& by) {
    Head got;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        got.low[j] = from && is_pair(j) ? from[low_of(by, j)] : 1.f;
        got.high[j] = from && is_pair(j) ? from[high_of(by, j)] : 1.f;
    }
    return got;
}

INLINE void norm(Head& head, const Head& weights, float epsilon) {
    float squares = 0.f;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j)
        squares += head.low[j] * head.low[j] + head.high[j] * head.high[j];
    const float inverse = rsqrtf(warp_sum(squares) / SIZE + epsilon);
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        head.low[j] *= inverse * weights.low[j];
        head.high[j] *= inverse * weights.high[j];
    }
}

INLINE void store_rotated(u16* to, const Head& head, const Rotation& by) {
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        if (!is_pair(j)) continue;
        const float cosine = by.cosine[j], sine = by.sine[j];
        to[low_of(by, j)] = float_to_bf16(head.low[j] * cosine - head.high[j] * sine);
        to[high_of(by, j)] = float_to_bf16(head.high[j] * cosine + head.low[j] * sine);
    }
}
