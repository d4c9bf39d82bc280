"""Benchmarks of the host side: `python -m tools.bench frames`, `… rounds`; without a name, all of them."""
