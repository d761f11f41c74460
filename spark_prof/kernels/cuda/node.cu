// Kernels that do nothing, or hardly anything: chains of them tell what a node of a CUDA graph costs.
#include "platform.cuh"

KERNEL empty(u32* count) {
    start_next_kernel();
    wait_for_previous_kernel();
}

// Reads what the kernel before it wrote: behind a chain of them there is how many ran.
KERNEL add_one(u32* count) {
    start_next_kernel();
    wait_for_previous_kernel();
    if (blockIdx.x == 0 && threadIdx.x == 0) *count = *count + 1;
}
