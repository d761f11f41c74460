"""Whose memory and whose data a kernel works on: its owner, proven by its arguments."""
