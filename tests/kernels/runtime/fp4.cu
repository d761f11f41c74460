// One kernel for each thing of platform.cuh that only GPUs with FP4 products have, for the tests.
#include "platform.cuh"

KERNEL codes(const float* from, u32* e2m1, u32* e4m3, int count) {
    const int at = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= count) return;
    e2m1[at] = floats_to_e2m1x2(from[at], -from[at]);
    e4m3[at] = float_to_e4m3(from[at]);
}

// Operands as each lane has them: of a four words, of b two, and its word of scales of each.
template <int A_LANES, int B_LANE>
INLINE void once(const uint4* a, const uint2* b, const u32* a_scales, const u32* b_scales, float* d) {
    const u32 lane = lane_id();
    float own[4] = {d[4 * lane], d[4 * lane + 1], d[4 * lane + 2], d[4 * lane + 3]};
    multiply_add_fp4_16x8x64<A_LANES, B_LANE>(own, a[lane], b[lane].x, b[lane].y, a_scales[lane],
                                              b_scales[lane]);
    for (int i = 0; i < 4; ++i) d[4 * lane + i] = own[i];
}

KERNEL product(const uint4* a, const uint2* b, const u32* a_scales, const u32* b_scales, float* d,
               int a_lanes, int b_lane) {
    if (a_lanes == 0 && b_lane == 0) once<0, 0>(a, b, a_scales, b_scales, d);
    if (a_lanes == 1 && b_lane == 1) once<1, 1>(a, b, a_scales, b_scales, d);
    if (a_lanes == 0 && b_lane == 3) once<0, 3>(a, b, a_scales, b_scales, d);
    if (a_lanes == 1 && b_lane == 2) once<1, 2>(a, b, a_scales, b_scales, d);
}
