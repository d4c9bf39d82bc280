"""The worker daemon: drafting loop, link to the gateway, discovery, pairing, configuration.

Public, by module:

- `config`: all
- `discovery`: `Browser`
- `doctor`: `examine`, `exit_code`
- `pair`: `pair`, `pair_through_peers`
- `report`: all
- `start`: all
"""
