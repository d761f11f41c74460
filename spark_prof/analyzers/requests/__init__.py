"""The way of each request through the scheduler: what its first token waited for, and the rest."""
