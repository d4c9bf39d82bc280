"""Making drafts of models: fewer layers, and weights in another format.

Public, by module:

- `drafts`: `block_count`, `copy_layers`, `FORMATS`, `Layer`, `make_draft`
- `space`: `disk_full`, `require_space`
"""
