"""Where the difference between two recordings comes from, and how sure that is."""
