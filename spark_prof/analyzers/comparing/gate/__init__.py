"""Holds a comparison against limits: what `compare --fail-on` says."""
