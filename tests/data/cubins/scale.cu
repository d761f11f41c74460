// Two kernels that need different numbers of registers, and one that is a C++ template.
extern "C" __global__ void scale(float *values, float by) { values[threadIdx.x] *= by; }

extern "C" __global__ void mix(float *out, const float *in, int stride) {
  float kept[16];
  for (int i = 0; i < 16; i++) kept[i] = in[i * stride + threadIdx.x];
  for (int i = 0; i < 16; i++) out[threadIdx.x * 16 + i] = kept[15 - i] * kept[i] + kept[i ^ 5];
}

template <typename T> __global__ void add(T *to, T what) { to[threadIdx.x] += what; }
template __global__ void add<int>(int *, int);
