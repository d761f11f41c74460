// Streams the units of a warp's run through registers, DEPTH of them in flight, in a namespace of
// layer.cu behind units.cuh. Weights may be asked for before the activations are there. An item is a
// stack of a matrix in the phase's order; `place` tells where its rows are among all.

struct Matrix {
    const u8 *weights, *scales;
    const float* row_scale;
    const u16* bias;
};

struct Ahead {
    int item, unit, at, end;
    const u8 *weights, *scales;
};

template <class Place>
INLINE void load_next(Unit& into, Ahead& ahead, const Matrix& matrix, Place place) {
    if (ahead.at >= ahead.end) return;
    load_weights(into, ahead.weights, ahead.scales, ahead.unit);
    if (++ahead.at < ahead.end && ++ahead.unit == UNITS) {
        const long long next = place(++ahead.item);
        ahead.unit = 0;
        ahead.weights = matrix.weights + next * WEIGHT_STRIDE;
        ahead.scales = matrix.scales + next * SCALE_STRIDE;
    }
}

template <class Place>
INLINE Ahead begin(Unit (&ring)[DEPTH], const Matrix& matrix, const Run& run, Place place) {
    Ahead ahead = {run.first / UNITS, run.first % UNITS, run.first, run.end, nullptr, nullptr};
    if (run.first < run.end) {
        const long long at = place(ahead.item);
        ahead.weights = matrix.weights + at * WEIGHT_STRIDE;
        ahead.scales = matrix.scales + at * SCALE_STRIDE;
    }
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) load_next(ring[slot], ahead, matrix, place);
    return ahead;
}

// Asks for all that a block will read, to L2: a lane for a stack.
template <class Place>
INLINE void prefetch(const Matrix& matrix, const Run& block, Place place) {
    if (block.first >= block.end) return;
#pragma unroll 1
    for (int item = block.first / UNITS + threadIdx.x; item <= (block.end - 1) / UNITS;
         item += WARPS * 32) {
        const long long at = place(item);
        prefetch_to_l2(matrix.weights + at * WEIGHT_STRIDE, WEIGHT_STRIDE);
        if (SCALE_STRIDE) prefetch_to_l2(matrix.scales + at * SCALE_STRIDE, SCALE_STRIDE);
    }
}

// row_of: a lane's activations for an item. finish: gets an item with its sums, scaled, the bias added
// by whom has its first unit.
template <class Place, class Row, class Finish>
INLINE void stream(Unit (&ring)[DEPTH], Ahead& ahead, const Matrix& matrix, const Run& run,
                   Place place, Row row_of, Finish finish) {
    const int group = lane_id() >> 2;
    int item = run.first / UNITS, unit = run.first % UNITS;
#if X_AHEAD
    Activations ring_x[DEPTH];
    int x_item = item, x_unit = unit, x_at = run.first;
    auto load_x = [&](int slot) {
        if (x_at >= run.end) return;
        load_activations<false, true>(ring_x[slot], row_of(x_item), x_unit);
        ++x_at;
        if (++x_unit == UNITS) x_unit = 0, ++x_item;
    };
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) load_x(slot);
#endif
    float sums[1][4] = {}, scale[2] = {1.f, 1.f}, offset[2] = {};
    bool begins = true;
    for (int at = run.first; at < run.end;) {
#pragma unroll
        for (int slot = 0; slot < DEPTH; ++slot) {
            if (at >= run.end) break;
            if (begins) {  // what the results need is asked for now
                const long long row = 16 * place(item) + group;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if (FORMAT != BF16) scale[half] = matrix.row_scale[row + 8 * half];
                    offset[half] =
                        matrix.bias && unit == 0 ? bf16_to_float(matrix.bias[row + 8 * half]) : 0.f;
                }
                begins = false;
            }
#if X_AHEAD
            multiply(ring[slot], ring_x[slot], nullptr, unit, TOKENS, sums);
            load_x(slot);
#else
            Activations x;
            load_activations<true>(x, row_of(item), unit);
            multiply(ring[slot], x, nullptr, unit, TOKENS, sums);
#endif
            load_next(ring[slot], ahead, matrix, place);
            ++at;
            if (++unit == UNITS || at == run.end) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sums[0][i] = sums[0][i] * scale[i >> 1] + offset[i >> 1];
                finish(item, sums[0]);
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[0][i] = 0.f;
                unit = 0;
                ++item;
                begins = true;
            }
        }
    }
}
