"""Whether what a load generator's clients saw agrees with what the engine's steps took."""
