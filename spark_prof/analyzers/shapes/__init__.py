"""How kernels are cut into blocks and tiles, and how well that fills the GPU."""
