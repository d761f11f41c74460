"""What an engine's start took, stage by stage, and what takes its memory: from its log alone."""
