"""What the tokens in the KV cache cost a decode step, by kind of layer."""
