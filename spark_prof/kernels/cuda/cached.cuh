// Eight features as a KV cache has them: bf16, or E4M3 codes with one scale for all.
//
// FP8: 1 for E4M3. NaN codes are read as 480: only a result that is NaN already leaves them.
#pragma once
#include "platform.cuh"

INLINE uint4 no_features() { return make_uint4(0u, 0u, 0u, 0u); }

#if FP8
using Eight = uint2;
INLINE Eight load_eight_if(bool wanted, const Eight* from) { return load_once_8_if(wanted, from); }

// Codes to bf16: their bits where bf16 has them are 2^-120 times the value.
INLINE u32 two_of(u32 codes, u32 selector) {
    const u32 apart = select_bytes(codes, 0u, selector);  // each in the upper byte of a half
    return multiply_bf16x2((apart & 0x80008000u) | (apart >> 4 & 0x07F007F0u), 0x7B807B80u);
}
INLINE uint4 as_bf16(const Eight& eight) {
    return make_uint4(two_of(eight.x, 0x1404u), two_of(eight.x, 0x3424u),
                      two_of(eight.y, 0x1404u), two_of(eight.y, 0x3424u));
}

// The nearest code, to even; beyond 448 that of 448.
INLINE u32 code_of(float value) {
    if (value != value) return 0x7Fu;
    const u32 sign = bits_of_float(value) >> 24 & 0x80u;
    float size = float_of_bits(bits_of_float(value) & 0x7FFFFFFFu);
    size = size > 448.f ? 448.f : size;
    if (size < 0.015625f) return sign | (bits_of_float(size + 16384.f) & 0xFu);  // of 2^-9
    const u32 bits = bits_of_float(size);
    return sign | (((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - 960u);
}
INLINE u32 four_codes(u32 low, u32 high, float scale) {
    return code_of(float_of_bits(low << 16) / scale) |
           code_of(float_of_bits(low & 0xFFFF0000u) / scale) << 8 |
           code_of(float_of_bits(high << 16) / scale) << 16 |
           code_of(float_of_bits(high & 0xFFFF0000u) / scale) << 24;
}
INLINE Eight stored(const uint4& bf16, float scale) {
    Eight got;
    got.x = four_codes(bf16.x, bf16.y, scale);
    got.y = four_codes(bf16.z, bf16.w, scale);
    return got;
}
#else
using Eight = uint4;
INLINE Eight load_eight_if(bool wanted, const Eight* from) { return load_once_16_if(wanted, from); }
INLINE uint4 as_bf16(const Eight& eight) { return eight; }
INLINE Eight stored(const uint4& bf16, float) { return bf16; }
#endif
