"""Measures of what draft heads and a self-draft save."""
