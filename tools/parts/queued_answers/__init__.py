"""Measures of what queued answers save under load."""
