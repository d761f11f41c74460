"""A model and a workload that need no download; used by make demo, the tests and benchmarks."""
