"""Replacement kernels for small-batch FP4 decode, with what proves and what measures them."""
