"""Draws reports: every format a file in render/, every topic a section, every figure a chart."""
