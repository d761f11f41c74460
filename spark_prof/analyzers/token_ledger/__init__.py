"""Where the time of a step and of a token goes, so that the parts add up to it."""
