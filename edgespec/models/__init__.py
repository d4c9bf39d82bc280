"""Fetching models, and making drafts of them: what a worker's admin and a gateway's operator do before the first start.

Public, by module:

- `command`: all
- `drafts`: `block_count`
- `verbs`: all
"""
