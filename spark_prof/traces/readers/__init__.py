"""Readers of trace formats, one format a file."""
