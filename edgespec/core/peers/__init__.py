"""Daemons of a campus among themselves: what they say to one another before a tunnel.

Public, by module:

- `handshake`: `CallerHandshake`, `ListenerHandshake`
- `messages`: `Ask`, `decode_peer`, `Granted`, `MAX_CHUNK_BYTES`, `MAX_GATEWAYS`, `NO_GATEWAY`, `PeerMessage`,
  `PeerReason`, `PeerRefused`, `PeerUnavailable`, `Purpose`
"""
