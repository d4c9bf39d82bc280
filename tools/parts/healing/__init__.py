"""Measures of a draft that learns."""
