"""Checks of the whole tree that no ready-made linter does; `make check` runs them."""
