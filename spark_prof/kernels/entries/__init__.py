"""What there is, one kind of kernel a file."""
