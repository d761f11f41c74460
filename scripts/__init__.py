"""What is run by hand: to set up, to check, to read vLLM."""
