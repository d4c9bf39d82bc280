"""The watch: reads what the policy uses, when it is due, and reports changes only."""

from __future__ import annotations

import asyncio
import io

import pytest

from edgespec.parts.owner_signs.policy import OwnerPolicy, Verdict
from edgespec.parts.owner_signs.watch import RETRY_S, SignWatch
from edgespec.shared import logs
from tests.parts.owner_signs.scripted import Scripted


async def watched(policy: OwnerPolicy, *sources: Scripted) -> tuple[SignWatch, list[Verdict], asyncio.Task[None]]:
    """A watch that runs on the clock of the event loop."""
    seen: list[Verdict] = []
    clock = asyncio.get_running_loop().time
    watch = SignWatch(policy, sources, seen.append, clock, wall=lambda: 1_000_000 + clock())
    task = asyncio.ensure_future(watch.run())
    await asyncio.sleep(0.01)
    return watch, seen, task


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.driven
async def test_it_steps_aside_within_a_period_and_returns_after_the_idle_time() -> None:
    source = Scripted("input")
    watch, seen, task = await watched(OwnerPolicy(limits={"input": 1}, idle_s=60), source)
    await asyncio.sleep(10)
    assert [one.drafting for one in seen] == [True]
    source.value = 1
    await asyncio.sleep(0.26)
    assert [one.drafting for one in seen] == [True, False]
    source.value = 0
    await asyncio.sleep(59)
    assert not seen[-1].drafting
    await asyncio.sleep(2)
    assert [one.drafting for one in seen] == [True, False, True]
    (aside,) = watch.status()["stepped_aside"]
    assert aside["because"] == "keyboard or mouse in use" and 60 <= aside["for_s"] <= 61
    await ended(task)
    assert source.closed > 0


@pytest.mark.driven
async def test_a_source_that_is_not_there_is_off_with_its_reason_and_tried_again() -> None:
    gpu = Scripted("gpu", None)
    battery = Scripted("battery", 0.0, period_s=1)
    watch, seen, task = await watched(OwnerPolicy(limits={"gpu": 10, "battery": 1}), gpu, battery)
    assert watch.status()["sources"] == {"gpu": "off: there is none", "battery": 0.0}
    gpu.value = 50
    await asyncio.sleep(RETRY_S - 1)
    assert seen[-1].drafting and gpu.opened == 1
    await asyncio.sleep(2)
    assert not seen[-1].drafting
    gpu.value = None
    await asyncio.sleep(1)
    assert watch.status()["sources"]["gpu"] == "off: it was taken away"
    await ended(task)


@pytest.mark.driven
async def test_sources_that_are_off_are_one_line_of_the_log_with_reasons() -> None:
    out = io.StringIO()
    with logs.policy("info", out):
        sources = Scripted("gpu", None), Scripted("battery", 0.0, period_s=1), Scripted("input", None)
        _, _, task = await watched(OwnerPolicy(limits={"gpu": 10, "battery": 1, "input": 1}), *sources)
        await asyncio.sleep(3 * RETRY_S)
        await ended(task)
    lines = [line.partition("edgespec.owner: ")[2] for line in out.getvalue().splitlines() if "edgespec.owner" in line]
    assert lines == ["the owner is not looked for by gpu (there is none), input (there is none)"]


@pytest.mark.driven
@pytest.mark.parametrize("policy", [OwnerPolicy("always", limits={"input": 1}), OwnerPolicy(limits={"cpu": 1})])
async def test_what_the_policy_does_not_use_is_not_read(policy: OwnerPolicy) -> None:
    source = Scripted("input", 1)
    watch, seen, task = await watched(policy, source)
    await asyncio.sleep(5)
    assert (source.opened, source.reads) == (0, 0) and seen[-1].drafting
    assert watch.status()["sources"] == {}
    await ended(task)
