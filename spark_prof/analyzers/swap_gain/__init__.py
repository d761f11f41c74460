"""Where the gain of one side over the other came from, by component, layer and kernel."""
