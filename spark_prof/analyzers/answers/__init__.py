"""The questions that people with a slow FP4 model ask first, answered for one run."""
