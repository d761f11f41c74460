"""Measures what a machine reaches: memory, matrix products, launches; one question a file."""
