"""Benchmarks of the host side: `python -m tools.bench rounds`, and others; without a name, all of them."""
