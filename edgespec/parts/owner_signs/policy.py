"""Whether a worker may draft: the owner's policy, and a state machine over what the sources measure.

The state machine is `TABLE`. A source's value at or over its limit means that the owner is present; then the worker
steps aside at once, and drafts again after `idle_s` seconds without any such value. Times are seconds of one clock;
`day_s` is the local time as seconds since midnight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

DAY_S = 86_400.0

REASONS: Mapping[str, str] = {
    "input": "keyboard or mouse in use",
    "terminals": "typing in a terminal",
    "sessions": "a login session is active",
    "cpu": "other programs use the processor",
    "pressure": "other programs wait for the processor",
    "gpu": "other programs use the GPU",
    "battery": "runs on battery",
    "metered": "the network is metered",
}
"""Source -> what it means when its value reaches the limit. In the order in which they are reported."""


class OwnerState(Enum):
    """The state of one worker towards its owner."""

    DRAFTING = "drafting"
    ASIDE = "aside"
    """The owner is present, or the policy forbids drafting now."""
    RESTING = "resting"
    """No sign of the owner, but for less than `idle_s`."""


class Sighting(Enum):
    """The result of one look at the sources."""

    PRESENT = "present"
    QUIET = "quiet"
    RESTED = "rested"
    """Quiet, and for long enough."""


TABLE: Mapping[tuple[OwnerState, Sighting], OwnerState] = {
    (OwnerState.DRAFTING, Sighting.PRESENT): OwnerState.ASIDE,
    (OwnerState.DRAFTING, Sighting.QUIET): OwnerState.DRAFTING,
    (OwnerState.ASIDE, Sighting.PRESENT): OwnerState.ASIDE,
    (OwnerState.ASIDE, Sighting.QUIET): OwnerState.RESTING,
    (OwnerState.RESTING, Sighting.PRESENT): OwnerState.ASIDE,
    (OwnerState.RESTING, Sighting.QUIET): OwnerState.RESTING,
    (OwnerState.RESTING, Sighting.RESTED): OwnerState.DRAFTING,
}


IDLE_S = 60.0
"""A pause in typing is rarely longer."""


@dataclass(frozen=True, slots=True)
class OwnerPolicy:
    """When the worker may draft. Ranges are those of `[owner]` in worker.toml."""

    mode: Literal["always", "never", "when-idle"] = "when-idle"
    hours: tuple[tuple[float, float], ...] = ()
    """(start, end) in seconds since midnight; an end before its start lies on the next day. Empty: all day."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Source -> value from which on the owner counts as present. A source without a limit is not used."""
    idle_s: float = IDLE_S
    free_after_s: float = math.inf
    """Seconds after stepping aside after which the model is freed; infinite: it is kept."""

    def objection(self, day_s: float, values: Mapping[str, float]) -> str | None:
        """Why not to draft now; None: nothing speaks against it."""
        if self.mode == "never":
            return "its configuration says never"
        if not self._within_hours(day_s):
            return "outside its hours"
        if self.mode == "always":
            return None

        seen = (name for name in REASONS if name in self.limits and values.get(name, -math.inf) >= self.limits[name])
        return next((REASONS[name] for name in seen), None)

    def _within_hours(self, day_s: float) -> bool:
        spans = self.hours
        return not spans or any(a <= day_s < b if a < b else day_s >= a or day_s < b for a, b in spans)

    def next_change(self, day_s: float) -> float:
        """Seconds until hours begin or end; infinite without hours."""
        ends = (edge for span in self.hours for edge in span)
        return min(((edge - day_s) % DAY_S or DAY_S for edge in ends), default=math.inf)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision that holds until the next look."""

    state: OwnerState
    because: str | None
    """Why it stepped aside; None while drafting."""
    since: float
    """When it stepped aside or began to draft."""
    model: bool
    """Whether the draft model stays in memory."""
    wake_at: float
    """When to look again even if no source has a new value; may be infinite."""

    @property
    def drafting(self) -> bool:
        """Whether the worker may draft."""
        return self.state is OwnerState.DRAFTING


@dataclass(slots=True)
class SteppingAside:
    """The state machine of one worker."""

    policy: OwnerPolicy
    state: OwnerState = OwnerState.DRAFTING
    _because: str | None = None
    _since: float = 0.0
    _quiet_since: float = 0.0

    def look(self, now: float, day_s: float, values: Mapping[str, float]) -> Verdict:
        """One look at the sources: source -> latest value, in the source's unit."""
        objection = self.policy.objection(day_s, values)
        rested = self.state is OwnerState.RESTING and now >= self._quiet_since + self.policy.idle_s
        if objection:
            event = Sighting.PRESENT
        else:
            event = Sighting.RESTED if rested else Sighting.QUIET
        before = self.state
        self.state = TABLE[self.state, event]
        if (before is OwnerState.DRAFTING) != (self.state is OwnerState.DRAFTING):
            self._since = now
        if self.state is OwnerState.DRAFTING:
            self._because = None
        elif objection:
            self._because = objection
        elif before is OwnerState.ASIDE:
            self._quiet_since = now
        return self._verdict(now, day_s)

    def _verdict(self, now: float, day_s: float) -> Verdict:
        drafting = self.state is OwnerState.DRAFTING
        if drafting:
            free_at = math.inf
        else:
            free_at = self._since + self.policy.free_after_s
        deadlines = [now + self.policy.next_change(day_s)]
        if free_at > now:
            deadlines.append(free_at)
        if self.state is OwnerState.RESTING:
            deadlines.append(self._quiet_since + self.policy.idle_s)
        return Verdict(self.state, self._because, self._since, free_at > now, min(deadlines))
