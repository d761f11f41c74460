"""How fast a checkpoint can decode at most, from its configuration and its tensors' types."""
