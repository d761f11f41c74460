"""What `spark-prof kernels replay` writes, a kind of layer a file, with shapes to be filled in."""
