"""The pure core: no sockets, asyncio, threads, files, clock, torch or llama.cpp (tests/test_layers.py holds this).

Public, by module:

- `errors`: all
- `eviction`: `first_to_go`, `gives_way`, `Holding`, `Kept`
- `numbers`: `between`, `common_prefix`, `interpolate`
"""
