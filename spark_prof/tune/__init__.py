"""From a recording to a faster engine: what may be tried, trying it, and the answer."""
