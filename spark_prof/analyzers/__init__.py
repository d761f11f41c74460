"""Pure functions: a bundle in, tables or records out."""
