"""The closed list of labels with which sessions, frames and links end, as another machine's log may show them.

A peer can write anything into a WebSocket close reason or a `Bye`, parts of a prompt included. A log shows labels of
this list only; any other text is withheld.
"""

from __future__ import annotations

REASONS = frozenset(
    "bad-signature busy control expired fault flood gateway-key handshake-timeout internal malformed oversize padding "
    "pairing-order pin pong prefix quarantined revoked rotation sequence session silent slow stopping superseded tls "
    "tokenizer unexpected unpaired version vocabulary weak-key websocket shape-nodes shape-columns shape-parent "
    "shape-duplicate-sibling shape-vocabulary shape-depth shape-ids shape-entropy shape-cost shape-steps".split()
)


def shown(reason: str) -> str:
    """The label, or a constant in place of any other text."""
    return reason if reason in REASONS else "another reason" if reason else "no reason"
