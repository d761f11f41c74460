"""Kernels to begin with, one file a kind of layer; `spark-prof kernels template` copies one."""
