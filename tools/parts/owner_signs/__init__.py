"""Measures of how soon a worker yields to its owner."""
