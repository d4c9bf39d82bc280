"""Answers that are written to a prompt while its request waits for a slot (QueueSpec).

Public, by module:

- `drafts`: `QueueDrafts`, `REST`
- `workers`: `QueueWorkers`, `scope_for`
"""
