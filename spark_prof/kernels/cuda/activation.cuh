// What joins gate and up. ACTIVATION: 0 SiLU, 1 gpt-oss's SwiGLU, 2 the square of what is above 0,
// without a gate.
#pragma once
#include "platform.cuh"

#define SWIGLU 1
#define RELU2 2

INLINE float activate(float gate, float up, float alpha, float limit) {
    if (ACTIVATION == SWIGLU) {
        // Comparisons that a NaN fails leave it as it is.
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < -limit ? -limit : up;
        return gate / (1.f + expf(-alpha * gate)) * (up + 1.f);
    }
    return gate / (1.f + expf(-gate)) * up;
}

INLINE float square_above_0(float up) {
    up = up < 0.f ? 0.f : up;  // a NaN stays
    return up * up;
}
