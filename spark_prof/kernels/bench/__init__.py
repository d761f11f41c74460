"""Times the kernels beside others, on one machine in one run; one subject a file."""
