"""This daemon among its peers: the port for them, the relay, and the ways to the gateway through one of them.

Public, by module:

- `config`: `PeersSection`, `RelaySection`
- `pair`: `pair_peer`, `pair_through_peers`
- `place`: `Place`
- `relayed`: `Relayed`
- `routes`: `Routes`
"""
