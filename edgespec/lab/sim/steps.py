"""Modelled step times: what a pass of each model takes, by its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgespec.core.numbers import interpolate

WIDTHS = (1, 2, 4, 8, 16)
"""Leaves at which a draft measures its curve (edgespec/llamacpp/step_time.py)."""
UNREAD = 90
"""Prompt tokens that a local draft has not evaluated when the target has: the median of the demo's prompts."""


class Curve:
    """Seconds of a pass by its rows: linear between the points given, level beyond them."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self._points = dict(points)
        self._known: dict[int, float] = {}

    def __call__(self, rows: int) -> float:
        """Seconds for this many rows."""
        if rows not in self._known:
            self._known[rows] = interpolate(self._points, rows)
        return self._known[rows]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._points.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and self._points == other._points


@dataclass(frozen=True, slots=True)
class Steps:
    """Modelled step times. By default the local draft has to read the prompt, and reading costs what rows cost."""

    verify: Curve
    local: Curve | None
    """None: the gateway has no draft of its own."""
    worker: Curve
    catch_up_s: float | None = None
    """Per token that the local draft has not evaluated; None: as a row of its widest step. WANSpec's simulations
    take 0 (section 4.5: no measurable time)."""
    unread: int = UNREAD
    """Tokens of the prompt that it has not evaluated at time 0; one that drafts from the start reads them first."""
    leaves: int = WIDTHS[-1]
    """Most leaves of one local pass."""
    worker_noise: float = 0.0
    """Mean of the exponential share by which other jobs on its machine lengthen each step of the worker."""
    worker_says: Curve | None = None
    """The curve that the worker reports; None: its own."""

    @property
    def token_s(self) -> float:
        """Seconds to read one token."""
        if self.catch_up_s is not None or self.local is None:
            return self.catch_up_s or 0.0
        return self.local(WIDTHS[-1]) / WIDTHS[-1]
