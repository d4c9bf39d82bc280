"""A virtual clock and link around the controller and the drafting machine that ship, unchanged.

`edgespec replay` compares policies in it, and `python -m tools.sim` makes the papers' figures in it. Nothing here reads
a clock or a socket: a run depends on its seed alone.

Public, by module:

- `from_trace`: `Traced`
- `world`: `Result`, `run`
"""
