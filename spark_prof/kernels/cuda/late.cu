// Writes bytes late, long after the next kernel may have started: one that reads them before its wait
// reads what was there before.
#include "platform.cuh"

KERNEL write_late(const u8* from, u8* to, int count, int clocks) {
    start_next_kernel();
    wait_for_previous_kernel();
    spin(clocks);
    for (int at = threadIdx.x; at < count; at += blockDim.x) to[at] = from[at];
}
