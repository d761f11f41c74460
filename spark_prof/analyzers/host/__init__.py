"""Which code of the host the GPU waits for."""
