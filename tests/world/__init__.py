"""Recordings that are made up whole, so that everything about them is known.

`world.World` writes a real bundle through the pieces that a recorder writes; `truth` says by brute
force, a nanosecond at a time, what a report has to say of it; `strategies` makes worlds at random.
"""
