// Attention of WIDTH new tokens of each request, from qkv on: q and k are normed and rotated, the new
// keys and values written to their slots, and what the heads of one key and value head see is summed.
//
// A block has one new token, one head of keys and values with the `heads` of queries that share it,
// and one part of the context; the last block of a token and head to finish adds up the parts. Of
// its request's new tokens before it a block makes the keys and values for itself.
// A warp takes 16 tokens at a time, its loads are the operands of the tensor cores as they come:
// scores = q k^T with heads as rows, so that a lane gets those scores that it multiplies the values
// of its own tokens with; sums^T = v^T p^T. With FMAs, 8 heads would take 8 of them for each of the
// 7 elements that a multiprocessor reads in a clock, and as much again to convert and to reduce:
// all that it has (16 heads twice that). The tensor cores need less than a tenth of their time.
//
// SIZE: features of a head, a multiple of 16. HEAD_TILES: 1 for up to 8 heads, 2 for up to 16. FP8: of
// the cache. Its strides are in eights of features; `scale` has the scale of its keys in it.
#include "cached.cuh"
#include "heads.cuh"

#ifndef WIDTH
#define WIDTH 1
#endif

constexpr int THREADS = WARPS * 32;
constexpr int HEADS = 8 * HEAD_TILES;        // as rows of the tensor cores
constexpr int TOKENS = 16;                   // of a unit
constexpr int PARTS = (SIZE + 31) / 32;      // of keys: 32 features, a lane has eight of them
constexpr int SPANS = (SIZE + 63) / 64;      // of values: 64 features, a lane has eight of them
constexpr int COUPLES = SIZE / 2;            // of features, of which a thread sums one at a time
constexpr int AT_ONCE = 16;                  // parts of a context that it asks for
constexpr int VALUES = (WIDTH + WARPS - 1) / WARPS;  // new ones of a warp
// What registers suffice for: queries there and not in shared memory; loads of the warp's next
// unit.
constexpr bool KEEPS_QUERIES = SIZE * HEAD_TILES < 256, LOADS_AHEAD = SIZE * HEAD_TILES <= 256;
constexpr float LOG2_E = 1.44269504f;

SHARED uint4 queries[HEADS][SIZE / 8];
SHARED uint4 rotated_key[WIDTH][SIZE / 8];
SHARED Eight new_key[WIDTH][SIZE / 8], new_value[WIDTH][SIZE / 8];  // as the cache gets them
SHARED float2 sums[WARPS][HEADS][COUPLES + 2];
SHARED float2 weighed[WARPS][HEADS];  // the largest score, in powers of two; the sum of the weights
SHARED float sink_of[HEADS];
SHARED int is_last;

INLINE float larger(float a, float b) { return a < b ? b : a; }
INLINE float minus_infinity() { return float_of_bits(0xFF800000u); }

// A sum of values that are weighted by 2^(score - top), and the sum of these weights.
struct Sum {
    float top, total, low, high;  // of two features
};

INLINE void shrink(Sum& sum, float top) {
    const float factor = power_of_two(sum.top - top);
    sum = {top, sum.total * factor, sum.low * factor, sum.high * factor};
}
INLINE void add(Sum& sum, const float2& its, const float2& about) {
    const float factor = power_of_two(about.x - sum.top);
    sum.total += about.y * factor;
    sum.low += its.x * factor;
    sum.high += its.y * factor;
}

KERNEL __launch_bounds__(THREADS, MIN_BLOCKS)
attention(const u16* qkv, const long long* positions, Eight* keys, Eight* values, const int* blocks,
          const int* lengths, const long long* slots, const void* cos_sin, const float* q_norm,
          const float* k_norm, const float* sinks, u16* out, float2* partial, int* counters,
          int qkv_stride, int heads, int page_tokens, int page_stride, int token_stride,
          int head_stride, int blocks_stride, int window, int rotated, int halves,
          int float_cos_sin, float scale, float q_epsilon, float k_epsilon, float k_scale,
          float v_scale) {
    const int group = lane_id() >> 2, member = lane_id() & 3, lane = lane_id();
    const int split = blockIdx.x, kv_head = blockIdx.y, number = blockIdx.z;  // of the new token
    const int request = number / WIDTH, before = number % WIDTH;  // its request's new ones before it
    const int kv_heads = gridDim.y, splits = gridDim.x;
    const int pair = number * kv_heads + kv_head;  // what the parts are counted for
    u16* const own_out = out + 1ll * pair * heads * SIZE;
    // Neither these nor the cached keys and values of older tokens are of the kernel before: all of
    // them are asked for while it still runs.
    const int length = lengths[request] - (WIDTH - 1 - before);
    const int slot = static_cast<int>(slots[number]);  // the host has seen that it fits
    start_next_kernel();
    if (length <= 0 || slot < 0) {  // padding of a graph
        if (split) return;
        wait_for_previous_kernel();
        for (int at = threadIdx.x; at < heads * SIZE; at += THREADS) own_out[at] = 0;
        return;
    }
    const int first_token = window ? max(0, length - window) : 0;
    const int first_unit = first_token / TOKENS;
    const int units = (length - 1) / TOKENS + 1 - first_unit;
    // What two rounds of one block do is not worth a second block.
    const int each = units <= 2 * WARPS ? units : max(WARPS, (units + splits - 1) / splits);
    const int active = (units + each - 1) / each;
    if (split >= active) return;
    const bool is_newest = split == active - 1;
    const int end = first_unit + min(units, (split + 1) * each);
    // Of how many new tokens the block has keys and values, if any.
    const int fresh = end > (length - 1 - before) / TOKENS ? before + 1 : 0;

    int unit = first_unit + split * each + warp_id();
    // A lane knows the page of one of the warp's next 32 units.
    int page = 0, round = 0;
    auto take_pages = [&](int from) {
        const int its = from + lane * WARPS;
        if (its < end) page = blocks[1ll * request * blocks_stride + its * TOKENS / page_tokens];
    };
    struct Place {
        long long at;  // of the unit's first token, for both keys and values
        int token;     // the number of that
    };
    auto place_of = [&](int its, int which) {
        const int token = its * TOKENS;
        return Place{1ll * static_cast<int>(shuffle(static_cast<u32>(page), which)) * page_stride +
                         1ll * (token % page_tokens) * token_stride + 1ll * kv_head * head_stride,
                     token};
    };
    // New tokens are not in the cache yet, and what is not read may be NaN.
    auto is_cached = [&](int token) { return token >= first_token && token < length - 1 - before; };
    Eight key[2][PARTS], value[4][SPANS];
    auto load_keys = [&](const Place& place) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = 8 * i + group;
            const bool inside = is_cached(place.token + row);
            const Eight* const from = keys + place.at + 1ll * row * token_stride + member;
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                key[i][part] = load_eight_if(inside && part * 32 + 8 * member < SIZE,
                                             from + part * 4);
        }
    };
    // The four tokens of a lane are those whose scores it gets.
    auto row_of = [&](int i) { return 2 * member + (i & 1) + 8 * (i >> 1); };
    auto load_values = [&](const Place& place, int first, int last) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool inside = is_cached(place.token + row_of(i));
            const Eight* const from = values + place.at + 1ll * row_of(i) * token_stride + group;
#pragma unroll
            for (int span = first; span <= last; ++span)
                value[i][span] = load_eight_if(inside && span * 64 + 8 * group < SIZE,
                                               from + span * 8);
        }
    };
    take_pages(unit);
    Place place = place_of(unit, 0);
    if (LOADS_AHEAD && unit < end) {
        load_keys(place);
        load_values(place, 0, SPANS - 1);
    }

    const Rotation by = rotation_at(positions[number], cos_sin, float_cos_sin, rotated, halves);
    const Head q_weights = weights_at(q_norm, by), k_weights = weights_at(k_norm, by);
    if (threadIdx.x < HEADS)
        sink_of[threadIdx.x] = sinks && threadIdx.x < heads
                                   ? sinks[kv_head * heads + threadIdx.x] * LOG2_E
                                   : minus_infinity();
#pragma unroll 1
    for (int at = threadIdx.x; at < (HEADS - heads) * (SIZE / 8); at += THREADS)
        queries[heads + at / (SIZE / 8)][at % (SIZE / 8)] = no_features();
    const u16* const row = qkv + 1ll * number * qkv_stride;
    auto row_of_new = [&](int which) { return row - 1ll * (before - which) * qkv_stride; };
    auto head_of = [&](int head) {  // behind the queries come the keys
        return head < heads ? row + SIZE * (kv_head * heads + head)
                            : row_of_new(head - heads) + SIZE * (heads * kv_heads + kv_head);
    };
    wait_for_previous_kernel();
    auto value_of_warp = [&](int i) { return WARPS - 1 - warp_id() + i * WARPS; };
    auto has_value = [&](int i) { return value_of_warp(i) < fresh && lane < SIZE / 8; };
    uint4 its_value[VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; ++i)
        if (has_value(i)) {
            const u16* const from =
                row_of_new(value_of_warp(i)) + SIZE * ((heads + 1) * kv_heads + kv_head);
            its_value[i] = reinterpret_cast<const uint4*>(from)[lane];
        }
    const int rows = heads + fresh;
#pragma unroll 1
    for (int first = warp_id(); first < rows; first += AT_A_TIME * WARPS) {
        Head its[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i)
            its[i] = head_at(head_of(min(first + i * WARPS, rows - 1)), by);
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            const int head = first + i * WARPS;
            if (head >= rows) break;
            const bool is_key = head >= heads;
            const int which = WIDTH == 1 ? 0 : head - heads;  // of new tokens
            if (is_key ? k_norm : q_norm)
                norm(its[i], is_key ? k_weights : q_weights, is_key ? k_epsilon : q_epsilon);
            if (WIDTH > 1 && is_key && which < before)
                store_rotated(reinterpret_cast<u16*>(rotated_key[which]), its[i],
                              rotation_at(positions[number - before + which], cos_sin,
                                          float_cos_sin, rotated, halves));
            else
                store_rotated(reinterpret_cast<u16*>(is_key ? rotated_key[which] : queries[head]),
                              its[i], by);
            if (!is_key) continue;
            sync_warp();
            if (lane < SIZE / 8) new_key[which][lane] = stored(rotated_key[which][lane], k_scale);
        }
    }
#pragma unroll
    for (int i = 0; i < VALUES; ++i)
        if (has_value(i)) new_value[value_of_warp(i)][lane] = stored(its_value[i], v_scale);
    sync_block();
    if (is_newest && threadIdx.x < SIZE / 8) {
        const long long to = 1ll * (slot / page_tokens) * page_stride +
                             1ll * (slot % page_tokens) * token_stride +
                             1ll * kv_head * head_stride;
        keys[to + threadIdx.x] = new_key[before][threadIdx.x];
        values[to + threadIdx.x] = new_value[before][threadIdx.x];
    }

    uint4 kept[HEAD_TILES][PARTS];
    auto load_query = [&](int tile, int part) {
        return part * 32 + 8 * member < SIZE ? queries[8 * tile + group][4 * part + member]
                                             : no_features();
    };
#pragma unroll
    for (int tile = 0; tile < HEAD_TILES; ++tile)
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            if (KEEPS_QUERIES) kept[tile][part] = load_query(tile, part);
    auto query_of = [&](int tile, int part) {
        return KEEPS_QUERIES ? kept[tile][part] : load_query(tile, part);
    };
    // Of head `group` of a tile, over the lane's own tokens: the largest score so far, in powers of
    // two, and the sum of the weights. Of heads 2 member and 2 member + 1: the sums of values.
    float top[HEAD_TILES], total[HEAD_TILES], sum[HEAD_TILES][4 * SPANS][4] = {};
#pragma unroll
    for (int tile = 0; tile < HEAD_TILES; ++tile) top[tile] = minus_infinity(), total[tile] = 0.f;

    for (; unit < end; unit += WARPS) {
        if (!KEEPS_QUERIES) sync_warp();  // or the compiler would take them out of the loop
        const Place here = place;
        if (!LOADS_AHEAD) load_keys(here);
        const int oldest = length - 1 - before - here.token;  // new one's place, if it is there
        // Which new token is at a place of the unit; else one that there is not.
        auto new_at = [&](int place) {
            const bool seen = WIDTH == 1 || here.token + place >= first_token;
            return seen && place >= oldest ? place - oldest : WIDTH;
        };
        if (oldest < TOKENS) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    if (new_at(8 * i + group) <= before && part * 32 + 8 * member < SIZE)
                        key[i][part] = new_key[new_at(8 * i + group)][4 * part + member];
        }
        float score[2][4] = {};
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const uint4 upper = query_of(0, part);
            const uint4 lower = HEAD_TILES == 1 ? no_features() : query_of(HEAD_TILES - 1, part);
            const uint4 its[2] = {as_bf16(key[0][part]), as_bf16(key[1][part])};
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    multiply_add_16x8x16(score[i],  //
                                         word_of(upper, 2 * half), word_of(lower, 2 * half),
                                         word_of(upper, 2 * half + 1), word_of(lower, 2 * half + 1),
                                         word_of(its[i], 2 * half), word_of(its[i], 2 * half + 1));
        }
        const int next = unit + WARPS;
        if (++round % 32 == 0) take_pages(next);
        place = place_of(next, round % 32);
        if (LOADS_AHEAD && next < end) load_keys(place);

        u32 weight[HEAD_TILES][2];  // pairs of bf16
#pragma unroll
        for (int tile = 0; tile < HEAD_TILES; ++tile) {
            float exponent[4], best = top[tile];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = here.token + row_of(i);
                exponent[i] = token >= first_token && token < length
                                  ? score[i >> 1][2 * tile + (i & 1)] * (scale * LOG2_E)
                                  : minus_infinity();
                best = larger(best, exponent[i]);
            }
            best = larger(best, shuffle_xor(best, 1));
            best = larger(best, shuffle_xor(best, 2));
            const float base = best == minus_infinity() ? 0.f : best;
            const float shrunk = power_of_two(top[tile] - base);
            top[tile] = best;
            total[tile] *= shrunk;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                exponent[i] = power_of_two(exponent[i] - base);
                total[tile] += exponent[i];
            }
            weight[tile][0] = floats_to_bf16x2(exponent[0], exponent[1]);
            weight[tile][1] = floats_to_bf16x2(exponent[2], exponent[3]);
            const float even = shuffle(shrunk, 8 * member), odd = shuffle(shrunk, 8 * member + 4);
#pragma unroll
            for (int j = 0; j < 4 * SPANS; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[tile][j][i] *= i & 1 ? odd : even;
        }
#pragma unroll
        for (int span = 0; span < SPANS; ++span) {
            if (!LOADS_AHEAD) load_values(here, span, span);
            if (oldest < TOKENS && span * 64 + 8 * group < SIZE) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (new_at(row_of(i)) <= before)
                        value[i][span] = new_value[new_at(row_of(i))][8 * span + group];
            }
            const uint4 its[4] = {as_bf16(value[0][span]), as_bf16(value[1][span]),
                                  as_bf16(value[2][span]), as_bf16(value[3][span])};
#pragma unroll
            for (int j = 0; j < 4; ++j) {  // features 2 j and 2 j + 1 of the lane's eight
                const u32 a = word_of(its[0], j), b = word_of(its[1], j);
                const u32 c = word_of(its[2], j), d = word_of(its[3], j);
                const u32 low[2] = {select_bytes(a, b, 0x5410u), select_bytes(c, d, 0x5410u)};
                const u32 high[2] = {select_bytes(a, b, 0x7632u), select_bytes(c, d, 0x7632u)};
#pragma unroll
                for (int tile = 0; tile < HEAD_TILES; ++tile)
                    multiply_add_16x8x16(sum[tile][4 * span + j], low[0], high[0], low[1], high[1],
                                         weight[tile][0], weight[tile][1]);
            }
        }
        if (LOADS_AHEAD && next < end) load_values(place, 0, SPANS - 1);
    }
#pragma unroll
    for (int tile = 0; tile < HEAD_TILES; ++tile) {
        float all = total[tile] + shuffle_xor(total[tile], 1);
        all += shuffle_xor(all, 2);
        if (member == 0) weighed[warp_id()][8 * tile + group] = {top[tile], all};
#pragma unroll
        for (int j = 0; j < 4 * SPANS; ++j) {
            const int couple = j / 4 * 32 + 4 * group + j % 4;
            if (SIZE % 64 && couple >= COUPLES) continue;
            const float(&its)[4] = sum[tile][j];
            sums[warp_id()][8 * tile + 2 * member][couple] = {its[0], its[2]};
            sums[warp_id()][8 * tile + 2 * member + 1][couple] = {its[1], its[3]};
        }
    }
    sync_block();

    // Of a part: the sums of each head, then what weighed them.
    const int part_size = heads * (COUPLES + 1);
    float2* const own_part = partial + 1ll * pair * splits * part_size;
    auto finish = [&](Sum& got, int head, int couple) {
        const float sink = sink_of[head];
        shrink(got, larger(got.top, sink));
        const float factor = v_scale / (got.total + power_of_two(sink - got.top));
        reinterpret_cast<u32*>(own_out)[head * COUPLES + couple] =
            floats_to_bf16x2(got.low * factor, got.high * factor);
    };
#pragma unroll 1
    for (int at = threadIdx.x; at < heads * COUPLES; at += THREADS) {
        const int head = at / COUPLES, couple = at % COUPLES;
        Sum got = {minus_infinity()};
        // The first warp has a unit, so that this is a number.
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) got.top = larger(got.top, weighed[warp][head].x);
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp)
            add(got, sums[warp][head][couple], weighed[warp][head]);
        if (active == 1) {
            finish(got, head, couple);
            continue;
        }
        float2* const to = own_part + split * part_size;
        to[at] = {got.low, got.high};
        if (couple == 0) to[heads * COUPLES + head] = {got.top, got.total};
    }
    if (active == 1) return;
    fence();
    sync_block();
    if (threadIdx.x == 0) is_last = atomicAdd(&counters[pair], 1) == active - 1;
    sync_block();
    if (!is_last) return;
    fence();
    if (threadIdx.x == 0) counters[pair] = 0;  // for the next launch
#pragma unroll 1
    for (int at = threadIdx.x; at < heads * COUPLES; at += THREADS) {
        const int head = at / COUPLES;
        Sum got = {minus_infinity()};
#pragma unroll 1
        for (int first = 0; first < active; first += AT_ONCE) {
            float2 its[AT_ONCE], about[AT_ONCE];
            float top = got.top;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const float2* const from = own_part + min(first + i, active - 1) * part_size;
                its[i] = from[at];
                about[i] = from[heads * COUPLES + head];
                if (first + i >= active) about[i].x = minus_infinity();
                top = larger(top, about[i].x);
            }
            shrink(got, top);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) add(got, its[i], about[i]);
        }
        finish(got, head, at % COUPLES);
    }
}
