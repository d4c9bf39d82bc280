"""`[owner]`: when a worker drafts on a machine whose owner comes first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from msgspec import Meta

from edgespec.parts.owner_signs.policy import DAY_S, IDLE_S, OwnerPolicy
from edgespec.shared.settings import Removed, Section

Sign = Literal["input", "terminals", "sessions", "cpu", "pressure", "gpu", "battery", "metered"]
SIGN_LIMITS: Mapping[Sign, float] = {
    "input": 1,
    "terminals": 1,
    "sessions": 1,
    "cpu": 0.5,
    "pressure": 20.0,
    "gpu": 10.0,
    "battery": 1,
    "metered": 1,
}
"""Value of a source from which on the owner counts as present: half a core that other programs use, 20 % of the time in
which they wait for a processor, 10 % of a GPU; 1 if a source says yes or no. A desktop without its owner stays below
them, and a compile job or a game is above them at once (docs/worker.md)."""
FREE_AFTER_S = 600.0
"""Seconds aside before a model is freed: loading it again takes seconds, and a short return should not cost them."""


def hours(text: str) -> tuple[float, float]:
    """HH:MM-HH:MM -> (start, end) in seconds since midnight; 24:00 is the end of the day. Raises ValueError."""
    times = re.fullmatch(r"(\d\d):([0-5]\d)-(\d\d):([0-5]\d)", text)
    if times is None:
        raise ValueError("expected two times of the day")

    start = int(times[1]) * 3600.0 + int(times[2]) * 60
    end = int(times[3]) * 3600.0 + int(times[4]) * 60
    if start == end or start >= DAY_S or end > DAY_S:
        raise ValueError("both are times of the day, and not the same")

    return start, end


Hours = Annotated[str, Meta(max_length=11, extra={"allowed": 'hours such as "18:00-08:00"', "check": hours})]


class OwnerSection(Section, frozen=True):
    """The table `[owner]`."""

    mode: Literal["when-idle", "always", "never"] = "when-idle"
    hours: tuple[Hours, ...] = ()
    idle_s: Annotated[float, Meta(ge=0, le=86_400)] = IDLE_S
    model: Literal["keep", "free"] = "keep"
    signs: tuple[Sign, ...] = get_args(Sign)


_SIGNS = "list the signs that count in `owner.signs`; their limits are constants (docs/worker.md)."
REMOVED: Mapping[str, Removed] = {
    "owner.input": Removed(_SIGNS, (True,)),
    "owner.terminals": Removed(_SIGNS, (True,)),
    "owner.sessions": Removed(_SIGNS, (True,)),
    "owner.cpu_cores": Removed(_SIGNS, (0.5,)),
    "owner.pressure_percent": Removed(_SIGNS, (20.0,)),
    "owner.gpu_percent": Removed(_SIGNS, (10.0,)),
    "owner.battery": Removed(_SIGNS, (True,)),
    "owner.metered": Removed(_SIGNS, (True,)),
    "owner.free_after_s": Removed(
        f'with `owner.model = "free"` the model is freed after {FREE_AFTER_S:.0f} s.', (600.0,)
    ),
}
"""Keys of earlier versions, each with what holds instead."""


def owner_policy(owner: OwnerSection) -> OwnerPolicy:
    """The policy that these settings describe."""
    free_after_s = math.inf
    if owner.model == "free":
        free_after_s = FREE_AFTER_S

    return OwnerPolicy(
        mode=owner.mode,
        hours=tuple(hours(text) for text in owner.hours),
        limits={sign: SIGN_LIMITS[sign] for sign in owner.signs},
        idle_s=owner.idle_s,
        free_after_s=free_after_s,
    )
