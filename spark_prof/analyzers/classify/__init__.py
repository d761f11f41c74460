"""Which part of the GPU a kernel ran on, in which precision, and on what evidence."""
