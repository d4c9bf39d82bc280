"""Answers that are written to a prompt while its request waits for a slot (QueueSpec)."""
