"""Signs of the owner of this machine, and what the worker does about them (docs/worker.md).

Public, by module:

- `sources`: `Source`
- `watch`: `sources`, `Watch`
"""
