// Streams packed weights from memory to the tensor cores: 16 rows and 128 columns at a time.
//
// spark_prof/kernels/pack.py writes the layout. A unit is 16 rows x 128 columns of a matrix. With
// g = lane / 4 and t = lane % 4 a lane owns rows g and g + 8 of it, and of each 32 columns the
// eight from 8 t on: in a row of activations the four lanes of a group then read 64 bytes in a row.
// Which column is which k of the matrix instruction is free, if both sides take the same order. A
// tile is half a unit: 64 columns. If at most 64 columns are left the last unit has one tile only.
//
// FORMAT: 0 NVFP4, 1 MXFP4, 2 E4M3 with one scale a row, 3 BF16, 4 E4M3 with a float scale for eight
// rows of a unit, 5 integers of four bits with a scale and a zero point for a row of a unit. Of the
// last two the scale multiplies the unit's sums. BF16 is not packed: it is read where the model has
// it, row after row. TOKEN_TILES: 1 for up to 8 tokens, else 2.
// COLUMNS: of the matrix; a multiple of 16.
#pragma once
#include "vectors.cuh"

#define NVFP4 0
#define MXFP4 1
#define FP8_ROWS 2
#define BF16 3
#define FP8_BLOCKS 4
#define INT4 5

constexpr bool E4M3 = FORMAT == FP8_ROWS || FORMAT == FP8_BLOCKS;
constexpr int UNIT_COLUMNS = 128;
constexpr int TILES = (COLUMNS + 63) / 64;
constexpr int UNITS = (COLUMNS + UNIT_COLUMNS - 1) / UNIT_COLUMNS;
// Of 16 bytes, in a lane's part of a tile.
constexpr int VECTORS = FORMAT == BF16 ? 4 : E4M3 ? 2 : 1;
constexpr int TILE_BYTES = 512 * VECTORS;
constexpr int UNIT_SCALES =  // bytes
    FORMAT == NVFP4 ? 128 : FORMAT == MXFP4 || FORMAT == INT4 ? 64 : FORMAT == FP8_BLOCKS ? 8 : 0;
// Bytes of 16 rows in the two arrays of a packed matrix.
constexpr int WEIGHT_STRIDE = FORMAT == BF16 ? 32 * COLUMNS : TILES * TILE_BYTES;
constexpr int SCALE_STRIDE = UNITS * UNIT_SCALES;
constexpr int TOKENS = 8 * TOKEN_TILES;

// What a lane loads of one unit: its weights and their scales.
struct Unit {
    uint4 weights[2 * VECTORS];
    uint2 scales;
};

// A lane's activations for one unit, of one of 8 tokens.
struct Activations {
    uint4 x[4];
};

// Where 16 rows begin, by their place among those of all matrices. Of BF16 those from a border on
// lie elsewhere.
INLINE const u8* stack_at(const u8* weights, const u8* elsewhere, long long place,
                          long long border) {
    const bool there = FORMAT == BF16 && place >= border;
    return (there ? elsewhere : weights) + (there ? place - border : place) * WEIGHT_STRIDE;
}

INLINE bool has_one_tile(int unit) { return TILES % 2 && unit == UNITS - 1; }

// Whether a part of a unit, 32 columns of which a lane has those from `column` on, is of the matrix.
INLINE bool is_inside(int column, int part, int unit) {
    return COLUMNS % 64 ? column + part * 32 < COLUMNS : part < 2 || !has_one_tile(unit);
}

// Where a lane's part of a unit lies. Kept from unit to unit: made anew for each, an address takes more
// instructions than its load.
struct LaneUnit {
    const u8 *weights, *scales;
};

constexpr int UNIT_STEP = FORMAT == BF16 ? 2 * UNIT_COLUMNS : 2 * TILE_BYTES;  // bytes

// weights and scales: where the 16 rows begin.
INLINE LaneUnit lane_unit(const u8* weights, const u8* scales, int unit) {
    const int lane = lane_id();
    if (FORMAT == BF16) {
        const int column = unit * UNIT_COLUMNS + (lane & 3) * 8;
        return {weights + (lane >> 2) * 2ll * COLUMNS + 2 * column, scales};
    }
    const int in_scales = FORMAT == NVFP4                      ? (lane >> 1) * 8
                          : FORMAT == MXFP4 || FORMAT == INT4 ? (lane >> 2) * 8
                                                              : 0;
    return {weights + lane * 16 + unit * UNIT_STEP, scales + in_scales + unit * UNIT_SCALES};
}

INLINE void advance(LaneUnit& at, int units) {
    at.weights += units * UNIT_STEP;
    at.scales += units * UNIT_SCALES;
}

// unit: that is loaded, `later` units after `at`. eighth: of BF16, bytes from a row to the eighth
// after it, which need not be near.
INLINE void load_weights(Unit& into, const LaneUnit& at, int later, int unit,
                         long long eighth = 16ll * COLUMNS) {
    const u8* const from = at.weights + later * UNIT_STEP;
    if (FORMAT == BF16) {
        const int column = unit * UNIT_COLUMNS + (lane_id() & 3) * 8;
#pragma unroll
        for (int v = 0; v < 2 * VECTORS; ++v) {  // by turns of the upper and of the lower row
            const int part = v >> 1;
            into.weights[v] = is_inside(column, part, unit)
                                  ? load_once_16(from + (v & 1) * eighth + part * 64)
                                  : zeros();
        }
        return;
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        into.weights[v] = load_once_16(from + v * 512);
        into.weights[VECTORS + v] =
            has_one_tile(unit) ? zeros() : load_once_16(from + TILE_BYTES + v * 512);
    }
    if (UNIT_SCALES) into.scales = load_once_8(at.scales + later * UNIT_SCALES);
}
INLINE void load_weights(Unit& into, const u8* weights, const u8* scales, int unit,
                         long long eighth = 16ll * COLUMNS) {
    load_weights(into, lane_unit(weights, scales, unit), 0, unit, eighth);
}

// A lane's part of a token's activations for a unit.
INLINE const u16* lane_activations(const u16* row, int unit) {
    return row + unit * UNIT_COLUMNS + (lane_id() & 3) * 8;
}

// unit: whose activations are loaded, `later` units after `at`.
template <bool IN_SHARED_MEMORY = false>
INLINE void load_activations(Activations& into, const u16* at, int later, int unit) {
    const int first = unit * UNIT_COLUMNS + (lane_id() & 3) * 8;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const u16* const from = at + later * UNIT_COLUMNS + part * 32;
        into.x[part] = !is_inside(first, part, unit) ? zeros()
                       : IN_SHARED_MEMORY            ? *reinterpret_cast<const uint4*>(from)
                                                     : load_16(from);
    }
}
// row: the token's activations.
template <bool IN_SHARED_MEMORY = false>
INLINE void load_activations(Activations& into, const u16* row, int unit) {
    load_activations<IN_SHARED_MEMORY>(into, lane_activations(row, unit), 0, unit);
}

// Eight E2M1 codes to four pairs of bf16, each 2^-126 times its value: pack.py lays the bits of the
// first three pairs where bf16 wants them up to one rotation; the fourth takes what is left.
INLINE void expand_e2m1(u32 word, u32 (&pairs)[4]) {
    constexpr u32 keep = 0x81C081C0u;  // sign, two low bits of the exponent, first of the mantissa
    pairs[0] = word & keep;
    pairs[1] = rotate_left(word, 28) & keep;
    pairs[2] = (word << 6) & keep;
    pairs[3] = (rotate_left(word, 10) & 0x81808180u) | ((word << 2) & 0x00400040u);
}

// Four E4M3 codes to two pairs of bf16, each 2^-120 times its value; pack.py orders the bits.
INLINE void expand_e4m3(u32 word, u32& first, u32& second) {
    first = word & 0x87F087F0u;
    second = ((word << 4) & 0x80F080F0u) | ((word >> 4) & 0x07000700u);
}

// Eight integers of four bits to four pairs of bf16, each 128 more than its value.
INLINE void expand_int4(u32 word, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = ((word >> 4 * i) & 0x000F000Fu) | 0x43004300u;
}

// The factors of two rows' blocks, in bf16: the upper row's in the low half. NVFP4: pack.py has
// turned the E4M3 scale into five bits of exponent and three of mantissa. MXFP4: the byte is an
// exponent. E4M3: 2^120, what its codes lack. INT4: what is added, minus the zero point and 128.
INLINE u32 factors_of(const uint2& scales, int part) {
    if (E4M3) return 0x7B807B80u;
    if (FORMAT == INT4) return select_bytes(scales.x, scales.y, 0x5410u);
    if (FORMAT == BF16) return 0u;  // not used
    const u32 bytes = select_bytes(part < 2 ? scales.x : scales.y, 0u, part & 1 ? 0x4342u : 0x4140u);
    return FORMAT == NVFP4 ? bytes * 16u + 0x6F806F80u : bytes * 128u;
}

INLINE u32 scaled(u32 pair, u32 factor) {
    return FORMAT == BF16   ? pair
           : FORMAT == INT4 ? add_bf16x2(pair, factor)
                            : multiply_bf16x2(pair, factor);
}

// sums[token tile] += 16 rows of a unit times 8 tokens, without the scales of the unit's sums.
//
// first: the activations of tokens 0 to 7; second: the row of a token from 8 on, whose activations
// are loaded only where there are more than 8 tokens. Most experts have fewer, and registers for
// both would leave none for weights in flight.
INLINE void multiply_unit(const Unit& unit, const Activations& first, const u16* second, int index,
                          int tokens, float (&sums)[TOKEN_TILES][4]) {
    const bool both = TOKEN_TILES == 2 && tokens > 8;
    Activations more;
    if (both) load_activations(more, second, index);
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // 32 columns
        const u32 factors = factors_of(unit.scales, part);
        const u32 upper = low_twice(factors), lower = high_twice(factors);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 pairs[4];
            if (FORMAT == BF16) {
                const uint4& above = unit.weights[FORMAT == BF16 ? 2 * part : 0];
                const uint4& below = unit.weights[FORMAT == BF16 ? 2 * part + 1 : 0];
                pairs[0] = word_of(above, 2 * half), pairs[1] = word_of(below, 2 * half);
                pairs[2] = word_of(above, 2 * half + 1), pairs[3] = word_of(below, 2 * half + 1);
            } else if (E4M3) {
                const uint4& from = unit.weights[E4M3 ? part : 0];
                expand_e4m3(word_of(from, 2 * half), pairs[0], pairs[2]);
                expand_e4m3(word_of(from, 2 * half + 1), pairs[1], pairs[3]);
            } else if (FORMAT == INT4) {
                expand_int4(word_of(unit.weights[part >> 1], 2 * (part & 1) + half), pairs);
            } else {
                expand_e2m1(word_of(unit.weights[part >> 1], 2 * (part & 1) + half), pairs);
            }
            const u32 a0 = scaled(pairs[0], upper), a1 = scaled(pairs[1], lower);
            const u32 a2 = scaled(pairs[2], upper), a3 = scaled(pairs[3], lower);
            multiply_add_16x8x16(sums[0], a0, a1, a2, a3, word_of(first.x[part], 2 * half),
                                 word_of(first.x[part], 2 * half + 1));
            if (both)
                multiply_add_16x8x16(sums[TOKEN_TILES - 1], a0, a1, a2, a3,
                                     word_of(more.x[part], 2 * half),
                                     word_of(more.x[part], 2 * half + 1));
        }
    }
}

INLINE void multiply(const Unit& unit, const Activations& first, const u16* second, int index,
                     int tokens, float (&sums)[TOKEN_TILES][4]) {
    if (FORMAT != FP8_BLOCKS && FORMAT != INT4) {
        multiply_unit(unit, first, second, index, tokens, sums);
        return;
    }
    float own[TOKEN_TILES][4] = {};
    multiply_unit(unit, first, second, index, tokens, own);
    constexpr u32 kept = FORMAT == INT4 ? 0xFFFF0000u : 0xFFFFFFFFu;
    const float upper = float_of_bits(unit.scales.x & kept);
    const float lower = float_of_bits(unit.scales.y & kept);
#pragma unroll
    for (int tile = 0; tile < TOKEN_TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][i] += own[tile][i] * (i < 2 ? upper : lower);
}
