"""Reads vLLM's Python sources, from wheels or folders, and never imports or runs them.

`python -m scripts.vllm_sources` writes the tables in spark_prof/rules from them, and checks a
new wheel.
"""
