"""How far kernels are from what the memory and the arithmetic units allow, one question a file."""
