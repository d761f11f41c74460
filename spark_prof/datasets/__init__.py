"""Many recordings as one dataset: found in a folder, read one at a time, anywhere in a cluster."""
