"""Which kernels were chosen for which layers, by three sources, and what kept better ones out."""
