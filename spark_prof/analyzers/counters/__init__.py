"""What the sampled hardware counters say about kernels, one question a file."""
