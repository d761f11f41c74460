"""Draws reports: every format a file, every figure in charts.py."""
