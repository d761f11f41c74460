"""What drafted tokens bring, and what they cost."""
