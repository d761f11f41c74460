// A kernel of a model as far as its time goes: it reads some bytes, before or behind its wait.
#include "platform.cuh"

KERNEL stream(const uint4* from, u32* result, int count, int ahead) {
    start_next_kernel();
    if (!ahead) wait_for_previous_kernel();
    const int step = gridDim.x * blockDim.x;
    u32 bits = 0;
#pragma unroll 8
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
        const uint4 read = load_once_16(from + at);
        bits ^= read.x ^ read.y ^ read.z ^ read.w;
    }
    if (ahead) wait_for_previous_kernel();
    if (bits == 0x5eed) *result = bits;
}
