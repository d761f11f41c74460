"""Real traces, damaged in every way that we can think of: one clear line or a report, never more.

A longer run than usual: ``FUZZ_CASES=20000 pytest tests/fuzz/test_mutated.py``.
"""
