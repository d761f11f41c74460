// A barrier of all blocks of a grid that are in the kernel together, in two halves: between them a block
// does what the others need not have come for.
//
// All add 1 to the counter but block 0, which adds what makes 2^31 of them all: the highest bit turns
// over when the last has come, and nothing is reset, neither for the next barrier nor for the next
// launch. A block that waits for seconds ends the launch with an error: an error in the kernel, or
// blocks that there was no room for, hangs nothing.
#pragma once
#include "platform.cuh"

constexpr u32 MOST_LOOKS = 1u << 22;  // of most of a microsecond each

// What the block wrote before this is seen by all blocks behind `meet`, with loads that are fresh.
INLINE u32 arrive(u32* counter) {
    sync_block();
    const u32 own = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    return threadIdx.x == 0 ? add_in_order(counter, own) : 0u;
}
// before: what `arrive` gave to this thread.
INLINE void meet(const u32* counter, u32 before) {
    if (threadIdx.x == 0)
        for (u32 looks = 0; !((load_in_order(counter) ^ before) >> 31); ++looks) {
            if (looks == MOST_LOOKS) give_up();
            let_others_run();
        }
    sync_block();
}
