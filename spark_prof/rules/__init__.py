"""What is known beforehand, as tables: each row carries the examples that are its test."""
