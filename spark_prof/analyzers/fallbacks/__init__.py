"""Which kernels were chosen for which layers, by three witnesses, and what kept better ones out."""
