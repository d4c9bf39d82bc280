"""Trains what drafts for a target, on text that the target itself writes: heads, layers of its own."""
