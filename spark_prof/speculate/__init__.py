"""What drafts cost and bring in a live engine, and how many of them are best."""
