"""Doubles of the models and of the link layer, with real bookkeeping: for tests, the fuzz gate and benchmarks."""
