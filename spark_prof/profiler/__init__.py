"""Makes a bundle from a live vLLM run."""
