"""Planted faults, and whether the tests find them."""
