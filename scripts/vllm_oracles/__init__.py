"""Reads from vLLM's Python sources which kernels it tries, in which order, on which GPU."""
