"""What `edgespec peers` prints for people; `--json` prints what these functions are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgespec.worker.report import NAME


def peers(shown: Mapping[str, Any]) -> str:
    """A block of lines for each peer, and what this daemon relays."""
    blocks = ["\n".join(f"{name:{NAME}} {value}" for name, value in _peer(peer)) for peer in shown["peers"]]
    relayed = ", ".join(shown["relaying"])
    megabytes = f"{shown['forwarded_bytes'] / 1e6:.1f} MB forwarded so far"
    last = f"{'relaying':{NAME}} {'for ' + relayed if relayed else 'for no peer'}; {megabytes}"
    return "\n\n".join([*(blocks or ["no peers"]), last])


def invitation(event: Mapping[str, Any]) -> str:
    if "code" in event:
        return (
            f"On the other machine, within {event['expires_in_s']:.0f} s:\n    edgespec peers pair {event['code']}\n"
            "or, where mDNS does not reach it, with this machine's address and peers.port:\n"
            f"    edgespec peers pair ADDRESS {event['code']}"
        )
    if "paired" in event:
        return f"Paired with the peer {event['paired']['name']} ({event['paired']['id']})."

    return f"An attempt failed: {event['message']} ({event['left']} left)."


def _peer(peer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "peer", f"{peer['name']} ({peer['id']}), {peer['trust']}"
    if "address" in peer:
        if "interface" in peer:
            interface = f", by interface {peer['interface']}"
        else:
            interface = ""
        yield "address", f"{peer['address']}{interface}"
    if "there" in peer:
        because = f": {peer['because']}" if "because" in peer else ""
        yield "state", f"{'there' if peer['there'] else 'not reached'}{because}"
    if "relays" in peer:
        yield "relays", "for this machine, if asked" if peer["relays"] else "for nobody"
        yield "drafts for", ", ".join(peer["drafting_for"]) or "no gateway at present"
