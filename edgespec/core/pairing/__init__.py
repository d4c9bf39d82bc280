"""Pairing by a one-time code: messages, the SPAKE2 exchange, the gateway's window."""
