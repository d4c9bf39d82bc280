"""The lines of `edgespec status` about the owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgespec.worker.report import duration


def lines(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The state towards the owner, the sources of signs, and the latest times aside."""
    owner = status.get("owner")
    if owner is None:
        yield "owner", "not watched: this worker was started to draft at any time"
        return

    state = owner["state"] or "not known yet"
    if owner["because"]:
        state = f"{state}: {owner['because']}"
    yield "owner", f"{state} (`owner.mode` is {owner['mode']})"

    for name, value in owner["sources"].items():
        yield f"  {name}", str(value)

    title = "  aside"
    for aside in reversed(owner["stepped_aside"]):
        yield title, f"{aside['at']} for {duration(aside['for_s'])}: {aside['because']}"
        title = ""
