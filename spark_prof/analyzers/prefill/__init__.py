"""What reading prompts takes: its products, its attention, and what chunks cost decodes."""
