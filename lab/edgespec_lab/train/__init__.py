"""Trains what drafts for a target, on text that the target itself writes: heads, a smaller model, layers of its own."""
