"""What proves a kernel right: exact results in float64, how far from them it may lie, and cases."""
