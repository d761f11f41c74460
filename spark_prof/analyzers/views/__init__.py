"""What a page of the explorer draws of millions of kernels: small tables out of plain columns."""
