"""What `edgespec status` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def text(status: Mapping[str, Any]) -> str:
    """One line for each value; values of a table below its name."""
    return "\n".join(_lines(status))


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


def _row(aside: Mapping[str, Any]) -> str:
    return f"{aside['at']}  for {aside['for_s']} s: {aside['because']}"
