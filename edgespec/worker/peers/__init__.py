"""This daemon among its peers: the port for them, the relay, and the ways to the gateway through one of them.

Public, by module:

- `optional`: `Peers`
- `service`: `PeerService`
- `tunnel`: `Caller`
"""
