"""Reads the sources and applies the policy: the shell around `edgespec.parts.owner_signs.policy`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.parts.owner_signs.bus import Metered, Sessions
from edgespec.parts.owner_signs.policy import DAY_S, OwnerPolicy, SteppingAside, Verdict
from edgespec.parts.owner_signs.sources import (
    Battery,
    InputDevices,
    OtherGpuUse,
    OtherGroups,
    OtherPrograms,
    Source,
    Terminals,
    Unavailable,
)

log = logging.getLogger("edgespec.owner")

RETRY_S = 30.0
"""Until a source that cannot be read is opened again."""
MIN_WAIT_S = 0.01
"""Between two looks without a new value, whatever the deadline."""
MAX_WAIT_S = 60.0
"""Between two looks, since the local time may be set."""
NOT_READ = "not read yet"
KEPT = 20
"""Latest times aside that `edgespec status` shows."""


@dataclass(slots=True)
class Aside:
    """One time aside. Times are seconds since 1970."""

    began: float
    because: str
    ended: float | None = None


@dataclass(slots=True)
class _Watched:
    source: Source
    value: float | None = None
    off: str = NOT_READ


@dataclass(slots=True)
class SignWatch:
    """Calls `changed` on the event loop with each verdict that differs from the one before."""

    policy: OwnerPolicy
    sources: Sequence[Source]
    changed: Callable[[Verdict], None]
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    asides: deque[Aside] = field(default_factory=lambda: deque(maxlen=KEPT))
    verdict: Verdict | None = None
    _watched: list[_Watched] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        machine = SteppingAside(self.policy)
        wanted = self.policy.limits if self.policy.mode == "when-idle" else ()
        self._watched = [_Watched(source) for source in self.sources if source.name in wanted]
        followed = [asyncio.ensure_future(self._follow(one)) for one in self._watched]
        try:
            while True:
                self._news.clear()
                values = {one.source.name: one.value for one in self._watched if one.value is not None}
                verdict = machine.look(self.clock(), self._day_s(), values)
                self._apply(verdict)
                wait_s = min(max(verdict.wake_at - self.clock(), MIN_WAIT_S), MAX_WAIT_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), wait_s)
        finally:
            for one in followed:
                one.cancel()
            await asyncio.gather(*followed, return_exceptions=True)

    def status(self) -> dict[str, Any]:
        """For `edgespec status`: state, reason, sources, the latest times aside; JSON types."""
        verdict = self.verdict
        return {
            "mode": self.policy.mode,
            "state": verdict.state.value if verdict else None,
            "because": verdict.because if verdict else None,
            "sources": {
                one.source.name: f"off: {one.off}" if one.value is None else round(one.value, 2)
                for one in self._watched
            },
            "stepped_aside": [
                {
                    "at": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(aside.began)),
                    "because": aside.because,
                    "for_s": round((aside.ended or self.wall()) - aside.began, 1),
                }
                for aside in self.asides
            ],
        }

    async def _follow(self, one: _Watched) -> None:
        """Reads one source for ever. Each has a task of its own, so that none waits for a bus that is slow."""
        try:
            while True:
                try:
                    await one.source.open()
                    while True:
                        self._put(one, one.source.read(self.clock()))
                        await asyncio.sleep(one.source.period_s)
                except Unavailable as why:
                    known = one.value is not None or one.off != NOT_READ
                    one.off = str(why)
                    if known and one.value is not None:
                        log.info("the owner is not looked for by %s any more: %s", one.source.name, one.off)
                    self._put(one, None)
                    if not known:
                        self._report_off()
                await one.source.close()
                await asyncio.sleep(RETRY_S)
        finally:
            await one.source.close()

    def _report_off(self) -> None:
        """One line for all sources that are off, once each was opened."""
        if all(one.value is not None or one.off != NOT_READ for one in self._watched):
            off = [f"{one.source.name} ({one.off})" for one in self._watched if one.value is None]
            log.info("the owner is not looked for by %s", ", ".join(off))

    def _put(self, one: _Watched, value: float | None) -> None:
        if value != one.value:
            one.value = value
            self._news.set()

    def _apply(self, verdict: Verdict) -> None:
        before = self.verdict
        self.verdict = verdict
        was_drafting = before is None or before.drafting
        if was_drafting and not verdict.drafting:
            self.asides.append(Aside(self.wall(), verdict.because or ""))
        elif verdict.drafting and not was_drafting:
            self.asides[-1].ended = self.wall()
        if before is None or (before.drafting, before.model) != (verdict.drafting, verdict.model):
            self.changed(verdict)

    def _day_s(self) -> float:
        local = time.localtime(self.wall())
        return (local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec) % DAY_S


def sources() -> list[Source]:
    """Every source of this machine, not opened yet."""
    return [
        InputDevices(), Terminals(), Sessions(), OtherPrograms(), OtherGroups(), OtherGpuUse(), Battery(), Metered(),
    ]  # fmt: skip
