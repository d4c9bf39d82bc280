"""`edgespec doctor`: finds out why no gateway is found or nothing is drafted, and what to do.

Public, by module:

- `run`: `examine`, `exit_code`
"""
