"""Measures what a change to vLLM brings, side against side, and whether the model still agrees."""
