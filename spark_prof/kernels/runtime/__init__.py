"""How a kernel is compiled and launched: NVRTC and CUDA on a GPU, a C++ compiler on a CPU."""
