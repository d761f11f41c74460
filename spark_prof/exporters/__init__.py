"""Writes a bundle for other tools; imports analyzers and traces, never the command line."""
