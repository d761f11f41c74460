// One kernel a primitive of platform.cuh, for the tests: what each thread gets is what it gives.
#include "platform.cuh"

INLINE int at() { return int(blockIdx.x * blockDim.x + threadIdx.x); }

KERNEL to_bf16(const float* from, u16* to, u32* pairs, int count) {
    if (at() >= count) return;
    to[at()] = float_to_bf16(from[at()]);
    pairs[at()] = floats_to_bf16x2(from[at()], -from[at()]);
}

KERNEL powers(const float* exponents, float* got, int count) {
    if (at() < count) got[at()] = power_of_two(exponents[at()]);
}

// Of an odd index nothing is read: there its address is none.
KERNEL load_every_second(const uint4* from, uint4* to, const uint2* halves_from, uint2* halves_to,
                         int count) {
    if (at() >= count) return;
    const bool wanted = at() % 2 == 0;
    to[at()] = load_once_16_if(wanted, wanted ? from + at() : nullptr);
    halves_to[at()] = load_once_8_if(wanted, wanted ? halves_from + at() : nullptr);
}

KERNEL multiply_pairs(const u32* a, const u32* b, u32* products, int count) {
    if (at() < count) products[at()] = multiply_bf16x2(a[at()], b[at()]);
}

// a: 16 x 16, b: 16 x 8, d: 16 x 8, each row by row; the host knows nothing of the lanes.
KERNEL product(const u16* a, const u16* b, float* d) {
    const int group = lane_id() / 4, member = lane_id() % 4;
    auto pair = [](u16 low, u16 high) { return low | u32(high) << 16; };
    auto of_a = [&](int row, int column) {
        return pair(a[16 * row + column], a[16 * row + column + 1]);
    };
    auto of_b = [&](int row) { return pair(b[8 * row + group], b[8 * (row + 1) + group]); };
    const int at_d[] = {8 * group + 2 * member, 8 * (group + 8) + 2 * member};
    float own[4] = {d[at_d[0]], d[at_d[0] + 1], d[at_d[1]], d[at_d[1] + 1]};
    multiply_add_16x8x16(own, of_a(group, 2 * member), of_a(group + 8, 2 * member),
                         of_a(group, 2 * member + 8), of_a(group + 8, 2 * member + 8),
                         of_b(2 * member), of_b(2 * member + 8));
    for (int i = 0; i < 4; ++i) d[at_d[i / 2] + i % 2] = own[i];
}

KERNEL exchange(const u32* given, u32* got) {
    const u32 own = given[threadIdx.x];
    u32* results = got + 6 * threadIdx.x;
    results[0] = shuffle_xor(own, 5u);
    results[1] = shuffle(own, (lane_id() * 7 + 3) % 32);
    results[2] = bits_of_float(shuffle_xor(float_of_bits(own), 16u));
    results[3] = bits_of_float(shuffle(float_of_bits(own), 31u));
    results[4] = count_bits(own);
    results[5] = warp_max(own);
}

// The sum of all threads' numbers, over warps of any count: each barrier is needed.
KERNEL sum_of_block(const u32* given, u32* sums) {
    SHARED u32 of_warps[32];
    u32 sum = given[threadIdx.x];
    for (u32 mask = 16; mask; mask >>= 1) sum += shuffle_xor(sum, mask);
    if (lane_id() == 0) of_warps[warp_id()] = sum;
    sync_block();
    u32 total = 0;
    for (u32 i = 0; i < blockDim.x / 32; ++i) total += of_warps[i];
    sync_block();
    if (lane_id() == 31) of_warps[warp_id()] = 0;
    sums[threadIdx.x] = total;
}

// Some threads leave before the barrier, which then waits for the others only.
KERNEL leave_early(u32* got, int staying) {
    SHARED u32 held[1024];
    if (int(threadIdx.x) >= staying) return;
    held[threadIdx.x] = threadIdx.x;
    sync_block();
    got[threadIdx.x] = held[staying - 1 - threadIdx.x];
}

// All threads of all blocks change the same numbers.
KERNEL change_together(int* sum, float* real_sum, u32* bits) {
    const int own = at();
    atomicAdd(sum, own);
    atomicAdd(real_sum, 0.25f * own);
    atomicOr(bits, 1u << own % 32);
}

// Each thread's place among all.
KERNEL number(u32* count, u32* places) { places[at()] = add_in_order(count, 1u); }
