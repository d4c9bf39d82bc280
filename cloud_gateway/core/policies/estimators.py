"""Running estimates that the controller decides by: round trip, step times, acceptance. Seconds throughout."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from edgespec.core.numbers import between

UNKNOWN_STEP_S = 0.1
"""Taken for a target step until the first pass, where nothing was measured at the start."""
MAX_S = 60.0
"""What a measured time is cut to: a machine may sleep, and one such sample should not stay in a mean for long."""
MIN_PASS_S = 1e-6
"""The same from below for a pass, since policies divide by its time and a coarse clock may show none."""


NEWEST = 0.1
"""Weight of the newest sample in a mean, so that about the latest ten count."""


def measured(seconds: float, least_s: float = 0.0) -> float | None:
    """The time within these limits; None where it is not a finite number, from which nothing is learnt."""
    if math.isfinite(seconds):
        return min(max(seconds, least_s), MAX_S)
    return None


PROBE_EVERY = 128
"""Passes between two probes of a step curve, and those for which a point counts as known. More often they cost more,
less often a wrong point stands for longer: until it is its turn among the old points."""
RELIEF_EVERY = 32
RELIEF = 0.8
"""Passes after which points seen under more load are scaled, and the ratio of times below which that is so."""


class RttEstimator:
    """Smoothed round-trip time and its variation (RFC 6298 section 2)."""

    def __init__(self) -> None:
        self.srtt_s: float | None = None
        self.var_s = 0.0

    def sample(self, rtt_s: float) -> None:
        """Takes in one measured round trip."""
        cut = measured(rtt_s)
        if cut is None:
            return

        rtt_s = cut
        if self.srtt_s is None:
            self.srtt_s = rtt_s
            self.var_s = rtt_s / 2
        else:
            self.var_s += (abs(rtt_s - self.srtt_s) - self.var_s) / 4
            self.srtt_s += (rtt_s - self.srtt_s) / 8

    @property
    def high_s(self) -> float:
        """A value that few round trips exceed: srtt + 4 var."""
        return (self.srtt_s or 0.0) + 4 * self.var_s


class Ewma:
    """Exponentially weighted mean whose first samples count fully."""

    def __init__(self, weight: float = NEWEST, start: float | None = None) -> None:
        self.weight = weight
        self._count = 0
        self.value = start
        """The mean, or None before the first sample without a start."""

    def sample(self, value: float) -> None:
        """Takes in one value."""
        self._count += 1
        share = max(self.weight, 1 / self._count)
        if self.value is None:
            self.value = value
        else:
            self.value = self.value + (value - self.value) * share


class Latest:
    """The median of the latest samples, in which one that the machine stood still in does not count."""

    REMEMBERED = 9

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=self.REMEMBERED)
        self.value: float | None = None
        """None before the first sample. Each decision reads it some times, so that `sample` computes it."""

    def sample(self, value: float) -> None:
        """Takes in one value."""
        self._samples.append(value)
        self.value = median(self._samples)


class Pace:
    """Seconds per token over the latest rounds, as the ratio of the means of both."""

    def __init__(self) -> None:
        self._seconds = Ewma()
        self._tokens = Ewma()

    def sample(self, seconds: float, tokens: int) -> None:
        """Takes in one round."""
        self._seconds.sample(seconds)
        self._tokens.sample(tokens)

    @property
    def value(self) -> float | None:
        """None before there was a round that took time and gave a token."""
        seconds = self._seconds.value
        tokens = self._tokens.value
        if seconds and tokens:
            return seconds / tokens
        return None


class StepCurve:
    """Measured time of one pass as a function of its rows, linear between the row counts seen.

    The curve is not assumed to be monotone: fp32 on a CPU is slower with 2 rows than with 4.

    A row count that seems slow is never chosen, so what was measured of it at the start, or under another load, would
    stand for ever. Every `PROBE_EVERY` passes one such point is on offer as `probe` for one pass, the one seen or
    offered longest ago, at the least that a pass over so many rows can take. A policy to which it is worth that tries
    it, and what the pass takes replaces the point. Points seen beside other jobs become quicker as the passes over the
    rows seen since do: without candidates no probe could be tried.
    """

    def __init__(self, prior: Mapping[int, float], *, provisional: bool = False) -> None:
        """`prior`: rows -> seconds, at least one point, each used until passes of so many rows replace it, and scaled
        until then as the passes seen differ from the prior: other jobs slow all row counts. One that is `provisional`
        is replaced as a whole by the first pass, whatever its rows."""
        self._provisional = provisional
        self._points = {rows: Ewma(start=seconds) for rows, seconds in prior.items()}
        self._prior = dict(prior)
        self._prior_rows = sorted(prior)
        self._unseen = dict(prior)
        self._scale = Ewma()
        self._values = dict(prior)
        self._rows = sorted(prior)
        self._known = dict(prior)
        """What was asked for since the last sample: a decision asks for every number of rows that it may verify."""
        self.samples = 0
        """Passes taken in."""
        self.probe: tuple[int, float] | None = None
        """Rows on offer for the next pass, and the least seconds that it can take."""
        self._seen: dict[int, int] = {}
        """Rows -> `samples` at the latest pass over so many."""
        self._then: dict[int, Mapping[int, float]] = {}
        """Rows -> the curve after that pass."""
        self._offered: dict[int, int] = {}

    def sample(self, rows: int, seconds: float) -> None:
        """Takes in one measured pass."""
        cut = measured(seconds, MIN_PASS_S)
        if cut is not None:
            self.samples += 1
            if self._provisional:
                self._provisional = False
                self._prior = dict.fromkeys(self._prior, cut)
                self._unseen = dict(self._prior)
            if self.probe is not None and rows == self.probe[0]:
                self._points[rows], self._prior[rows] = (
                    Ewma(),
                    cut / (self._scale.value or 1.0),
                )
                self._prior_rows = sorted(self._prior)
            point = self._points.setdefault(rows, Ewma())
            point.sample(cut)
            self._seen[rows] = self.samples
            self._values[rows] = point.value or 0.0
            self._unseen.pop(rows, None)
            self._scale.sample(cut / max(between(self._prior, self._prior_rows, rows), MIN_PASS_S))
            for other, seconds in self._unseen.items():
                self._values[other] = seconds * (self._scale.value or 1.0)
            if len(self._values) > len(self._rows):
                self._rows = sorted(self._values)
            if self.samples % RELIEF_EVERY == 0:
                self._relieve()
            self._known = self._then[rows] = dict(self._values)
            if self.samples % PROBE_EVERY:
                self.probe = None
            else:
                self.probe = self._next_probe()

    def _relieve(self) -> None:
        """Scales points that were seen when passes over the rows seen lately took longer."""
        lately = [rows for rows, at in self._seen.items() if at > self.samples - RELIEF_EVERY]
        for rows, then in self._then.items():
            ratio = max(
                (self._values[one] / then[one] for one in lately if one in then),
                default=1.0,
            )
            if rows not in lately and ratio < RELIEF:
                self._values[rows] *= ratio
                self._points[rows] = Ewma(start=self._values[rows])
                self._then[rows] = dict(self._values)

    def _next_probe(self) -> tuple[int, float] | None:
        """The old point, seen or offered longest ago, that may be cheaper than it seems.

        At least a pass takes what those seen lately say: as much as one over fewer rows, or the share of one over more.
        """
        known = [rows for rows, at in self._seen.items() if at > self.samples - PROBE_EVERY]
        old = [rows for rows in self._rows if rows not in known]
        for rows in sorted(
            old,
            key=lambda rows: max(self._seen.get(rows, 0), self._offered.get(rows, 0)),
        ):
            least_s = max(self._values[other] * min(rows / other, 1) for other in known)
            if least_s < self._values[rows]:
                self._offered[rows] = self.samples
                return rows, least_s

        return None

    def __call__(self, rows: int) -> float:
        """Expected seconds of a pass over this many rows."""
        known = self._known.get(rows)
        if known is None:
            known = self._known[rows] = between(self._values, self._rows, rows)
        return known

    def points(self) -> dict[int, float]:
        """Rows -> seconds as they are estimated now."""
        return dict(self._values)


class StepClock:
    """The worker's step time Td: the median time per level of its latest frames while it streams.

    Several steps, and requests, may share a frame; a step brings each request a level at most. A median, because
    frames that were held up arrive together and a worker that waits for a commit leaves gaps.
    """

    REMEMBERED = 15
    TOGETHER_S = 0.0005
    """Frames closer than this came out of one hold-up (a loss that TCP repaired); such gaps say nothing of the step."""

    def __init__(self, start_s: float) -> None:
        self._gaps: deque[float] = deque(maxlen=self.REMEMBERED)
        self._last: float | None = None
        self.step_s = start_s
        """Td in seconds."""
        self._gap = 0.0
        self._levels = 0
        """Of the latest frame; without a gap it says nothing."""

    def frame(self, now: float, levels: int = 1) -> None:
        """A tree with so many levels arrived; those of one frame arrive at exactly one moment."""
        if now == self._last:
            self._levels = max(self._levels, levels)
            if self._gap:
                self._gaps[-1] = self._gap / self._levels
        else:
            gap = 0.0 if self._last is None else min(now - self._last, MAX_S)
            self._gap = gap if gap >= self.TOGETHER_S else 0.0
            self._levels = levels
            if self._gap:
                self._gaps.append(self._gap / levels)
        if len(self._gaps) > 2:
            self.step_s = median(self._gaps)
        self._last = now

    def broken(self) -> None:
        """The stream was interrupted (a misprediction, a pause): the next gap says nothing."""
        self._last = None
