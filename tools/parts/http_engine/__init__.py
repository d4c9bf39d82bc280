"""Measures the engine `http` before a server that nobody has changed."""
