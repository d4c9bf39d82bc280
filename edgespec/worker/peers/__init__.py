"""This daemon among its peers: the port for them, the relay, and the ways to the gateway through one of them.

Public, by module:

- `call`: `Caller`
- `config`: `KIB_PER_S`, `TUNNELS`, `PeersSection`, `RelaySection`
- `optional`: `Peers`
- `service`: `PeerService`
"""
