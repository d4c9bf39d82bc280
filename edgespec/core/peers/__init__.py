"""Daemons of a campus among themselves: what they say to one another before a tunnel.

Public, by module:

- `handshake`: `Ask`, `CallerHandshake`, `decode_peer`, `Granted`, `ListenerHandshake`, `MAX_CHUNK_BYTES`,
  `MAX_GATEWAYS`, `MAX_PEER_BYTES`, `NO_GATEWAY`, `PeerMessage`, `PeerReason`, `PeerRefused`, `PeerUnavailable`,
  `Purpose`
"""
