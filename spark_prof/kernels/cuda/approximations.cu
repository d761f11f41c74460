// What this device's approximate instructions give: oracles are as exact as their operands.
#include "platform.cuh"

KERNEL reciprocals(const float* values, float* results, int count) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) results[at] = approximate_reciprocal(values[at]);
}
