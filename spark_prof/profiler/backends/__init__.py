"""Ways to learn which kernels ran, one a file."""
