"""Kernels swapped into a running vLLM engine, one side or both sides at a time."""
