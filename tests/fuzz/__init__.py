"""Real traces, damaged in every way that we can think of: one clear line or a report, never more.

A longer run than the tests make: ``python -m tests.fuzz --seconds 600 --seed 7``.
"""
