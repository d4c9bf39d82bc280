"""The wire protocol `edgespec/1`: messages, signatures, handshake, session, prefix hashes (docs/protocol.md)."""
