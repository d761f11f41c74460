// How the warps of a block share out stacks of 16 rows: the SPLIT warps of one stack take its units
// in turn, DEPTH of them in flight; a block of WARPS warps works on WARPS / SPLIT stacks at a time.
#pragma once
#include "weights.cuh"

constexpr int STACKS = WARPS / SPLIT;
constexpr int RING = SPLIT * DEPTH;  // units from a slot's one to its next
constexpr bool WHOLE_RINGS = UNITS % RING == 0;
// What a warp has of a stack, rounded up to whole rounds of its ring.
constexpr int UNITS_A_WARP = (UNITS + RING - 1) / RING * DEPTH;

#if SPLIT > 1
using Partial = float[WARPS][TOKENS][16];
#ifndef PARTIALS
#define PARTIALS 2  // by turns: one may still be read when the other is written
#endif
SHARED Partial partial[PARTIALS];

// Hands a warp's sums to the block, as [token][row].
INLINE void share_sums(Partial& shared, const float (&sums)[TOKEN_TILES][4], int group,
                       int member) {
#pragma unroll
    for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            shared[warp_id()][8 * tile + 2 * member + (i & 1)][group + 8 * (i >> 1)] =
                sums[tile][i];
}
#endif
