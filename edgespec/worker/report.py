"""What `edgespec status` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def text(status: Mapping[str, Any]) -> str:
    """One line for each value; values of a table below its name."""
    return "\n".join(_lines(status))


def peers(shown: Mapping[str, Any]) -> str:
    """A block of lines for each peer, and what this daemon relays."""
    blocks = [text({key: _joined(value) for key, value in peer.items()}) for peer in shown["peers"]]
    relaying = text({"relaying": _joined(shown["relaying"]), "forwarded_bytes": shown["forwarded_bytes"]})
    return "\n\n".join([*(blocks or ["no peers"]), relaying])


def invitation(event: Mapping[str, Any]) -> str:
    """One event of `edgespec peers invite`."""
    if "code" in event:
        return (
            f"On the other machine, within {event['expires_in_s']:.0f} s:\n    edgespec peers pair {event['code']}\n"
            "or, where mDNS does not reach it, with this machine's address and peers.port:\n"
            f"    edgespec peers pair ADDRESS {event['code']}"
        )
    if "paired" in event:
        return f"Paired with the peer {event['paired']['name']} ({event['paired']['id']})."
    return f"An attempt failed: {event['message']} ({event['left']} left)."


def show_live(states: Iterable[Mapping[str, Any]]) -> None:
    """The latest state, in place, until there are no more."""
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=False) as live:
        for state in states:
            live.update(Text(text(state)), refresh=True)


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterable[str]:
    width = 18 - len(indent)
    for key, value in values.items():
        name = f"{indent}{key.replace('_', ' '):{width}}"
        if isinstance(value, Mapping):
            yield name.rstrip()
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{name} {'-' if not value else ''}".rstrip()
            yield from (f"{indent}  {_row(one)}" for one in value)
        else:
            yield f"{name} {'-' if value is None else value}"


def _joined(value: Any) -> Any:
    return (", ".join(value) or "-") if isinstance(value, list) else value


def _row(aside: Mapping[str, Any]) -> str:
    return f"{aside['at']}  for {aside['for_s']} s: {aside['because']}"
