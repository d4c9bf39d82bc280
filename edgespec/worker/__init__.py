"""The worker daemon: drafting loop, link to the gateway, discovery, pairing, configuration.

Public, by module:

- `config`: all
- `discovery`: `Browser`
- `doctor`: `examine`, `exit_code`
- `pair`: `pair_by_code`, `pair_peer`, `pair_through_peers`
- `report`: all
- `start`: all
"""
