// How the blocks of a grid and their warps share out the units of a list of stacks, and how what several
// warps have of a stack is added up: always in the order of the units.
#pragma once
#include "platform.cuh"

// Units of a list of stacks, one behind the other.
struct Run {
    int first, end;
};

// A warp's part of a stack's sums: of the one that its run begins in, and of the one that it ends in.
SHARED float corner[WARPS][2][ROOM][16];

INLINE Run run_of(const Run& block, int warp) {
    const int units = block.end - block.first;
    return {block.first + units * warp / WARPS, block.first + units * (warp + 1) / WARPS};
}

// Puts a lane's sums, as the tensor cores leave them, into the warp's corner.
INLINE void put_aside(const float (&sums)[4], bool from_start) {
    const int row = lane_id() >> 2, token = 2 * (lane_id() & 3);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (token + (i & 1) < ROOM)
            corner[warp_id()][from_start][token + (i & 1)][row + 8 * (i >> 1)] = sums[i];
}

// A stack's sum for a token and a row, of what its first warp in the block, this one, and those after
// it have put aside. end: of the stack's units.
INLINE float sum_of(const Run& block, bool from_start, int end, int token, int row) {
    float sum = corner[warp_id()][from_start][token][row];
#pragma unroll 1
    for (int warp = warp_id() + 1; warp < WARPS; ++warp) {
        const Run run = run_of(block, warp);
        if (run.first >= end) break;
        if (run.first < run.end) sum += corner[warp][0][token][row];
    }
    return sum;
}

// Once a warp has all of its run: settles the stacks that it is the first to have a part of. Those
// that lie within its run are settled already.
template <class Settle>
INLINE void settle_parts(const Run& block, const Run& run, int stack_units, Settle settle) {
    sync_block();
    if (run.first >= run.end) return;
    if (run.first % stack_units && run.first == block.first) settle(run.first / stack_units, false);
    const int last = run.end / stack_units;
    if (run.end % stack_units && last * stack_units >= run.first) settle(last, true);
}
// The same at the end of a stack, or of the run: `sums` are what the warp has of it.
template <class Settle>
INLINE void settle_or_keep(const Run& run, int stack, int stack_units, const float (&sums)[4],
                           Settle settle) {
    const bool from_start = run.first <= stack * stack_units;
    put_aside(sums, from_start);
    if (!from_start || run.end < (stack + 1) * stack_units) return;
    sync_warp();
    settle(stack, true);
    sync_warp();
}
