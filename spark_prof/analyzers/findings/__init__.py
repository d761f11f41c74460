"""What is worth changing in a run: one rule set, ranked by what it would bring."""
