"""Where peers listen, and how they announce themselves."""

from __future__ import annotations

from edgespec.shared.nearby import Kind

PEER_PATH = "/peer"
PEER_PROTOCOL = "edgespec-peer/2"
"""Name in TLS's ALPN (RFC 7301) by which daemons speak to their peers; version 1 used a WebSocket at `PEER_PATH`."""
PURPOSE = "peer"
"""The purpose of a pairing of two daemons."""
PEER = Kind("edgespec-peer", PEER_PATH, "edgespec peers pair")
"""Announcements of daemons."""
