"""Groups of workers: an API key lists the groups whose workers may read its prompts and draft for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

DEFAULT_GROUP = "default"
"""The group of a worker paired without `--group`, and of a key whose `--offload` names none."""
OWN_GROUP = "own"
"""The group of the worker that a gateway runs on its own machine, which may read every prompt. No other is in it."""
PATTERN = r"^[a-z0-9][a-z0-9._-]{0,31}\Z"
MAX_GROUPS = 16
"""Per worker or key; more would not fit on one line of a list."""

Group = Annotated[str, Meta(pattern=PATTERN)]
Groups = Annotated[tuple[Group, ...], Meta(min_length=1, max_length=MAX_GROUPS)]
DEFAULT_GROUPS = (DEFAULT_GROUP,)


def parse_groups(names: Iterable[str]) -> tuple[str, ...]:
    """Group names in order, each once; none at all means the default group. Raises ValueError with a sentence."""
    groups = tuple(dict.fromkeys(names)) or DEFAULT_GROUPS
    for name in groups:
        if not re.match(PATTERN, name):
            raise ValueError(
                f"`{name}` is not the name of a group: choose 1 to 32 small letters, digits, dots, hyphens or "
                "underscores, beginning with a letter or digit."
            )
    if OWN_GROUP in groups:
        raise ValueError(f"`{OWN_GROUP}` is the group of the gateway's own worker; choose another name.")
    if len(groups) > MAX_GROUPS:
        raise ValueError(f"These are {len(groups)} groups; name at most {MAX_GROUPS}.")

    return groups
