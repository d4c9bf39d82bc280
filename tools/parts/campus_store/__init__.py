"""Measurements of the campus store."""
