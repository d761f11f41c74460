// 16 bytes: their words, and eight values of bf16 in them as floats and back.
#pragma once
#include "platform.cuh"

INLINE uint4 zeros() { return make_uint4(0u, 0u, 0u, 0u); }
INLINE u32 word_of(const uint4& four, int index) {
    return index == 0 ? four.x : index == 1 ? four.y : index == 2 ? four.z : four.w;
}

INLINE void unpack(const uint4& eight, float (&into)[8]) {
    const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int k = 0; k < 8; ++k)
        into[k] = float_of_bits(k & 1 ? words[k >> 1] & 0xFFFF0000u : words[k >> 1] << 16);
}
// Rounded to nearest even.
INLINE uint4 packed(const float (&eight)[8]) {
    return make_uint4(floats_to_bf16x2(eight[0], eight[1]), floats_to_bf16x2(eight[2], eight[3]),
                      floats_to_bf16x2(eight[4], eight[5]), floats_to_bf16x2(eight[6], eight[7]));
}
INLINE void add(const uint4& one, const uint4& other, float (&sum)[8]) {
    float more[8];
    unpack(one, sum);
    unpack(other, more);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum[k] += more[k];
}
// from: what no kernel writes.
INLINE void load_floats(float (&into)[8], const float* from) {
    const uint4 low = load_constant_16(from), high = load_constant_16(from + 4);
    const u32 bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int k = 0; k < 8; ++k) into[k] = float_of_bits(bits[k]);
}
