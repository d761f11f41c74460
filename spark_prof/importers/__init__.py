"""Turns somebody else's trace into a bundle."""
