"""A worker's service whose owner comes and goes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from edgespec import __main__ as command
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.parts.owner_signs import settings
from edgespec.parts.owner_signs.policy import Verdict
from edgespec.parts.owner_signs.presence import OWNER_FIRST, OwnerPresence
from edgespec.parts.owner_signs.settings import OwnerSection
from edgespec.worker.daemon import FREED
from tests.parts.owner_signs.scripted import Scripted
from tests.parts.owner_signs.signed import with_signs
from tests.support.services import PROMPT, Running, serving_worker, until

SOON = OwnerSection(idle_s=0.3)


def verdict_of(running: Running) -> Verdict | None:
    """The latest verdict."""
    (presence,) = running.service.presences.each
    assert isinstance(presence, OwnerPresence)
    return presence.watch.verdict


@pytest.mark.claim("the-owners-return-reaches-the-gateway-and-ends-drafting")
async def test_the_owners_return_reaches_the_gateway_and_ends_drafting(tmp_path: Path) -> None:
    sign = Scripted("input", 0, period_s=0.02)
    async with serving_worker(tmp_path, [with_signs(SOON, sign)]) as running:
        await running.drafts(1)
        assert running.paused_because is None
        sign.value = 1
        await until(lambda: running.paused_because == OWNER_FIRST)
        steps = running.service.daemon.stats.steps
        running.open(2)
        await asyncio.sleep(0.2)
        assert running.service.daemon.stats.steps <= steps + 1  # the one in progress
        owner = (await running.service._status())["owner"]
        assert isinstance(owner, dict)
        assert (owner["state"], owner["because"]) == ("aside", "keyboard or mouse in use")
        sign.value = 0
        await until(lambda: running.paused_because is None)
        await running.drafts(3)


async def test_the_admins_pause_and_the_owners_do_not_end_each_other(tmp_path: Path) -> None:
    sign = Scripted("input", 0, period_s=0.02)
    async with serving_worker(tmp_path, [with_signs(SOON, sign)]) as running:
        await running.drafts(1)
        await running.service._pause("exam week")
        await until(lambda: running.paused_because == "exam week")
        sign.value = 1
        await until(lambda: verdict_of(running) and not verdict_of(running).drafting)
        assert await running.service._resume() == {"paused": OWNER_FIRST}
        await running.service._pause("exam week")
        sign.value = 0
        await until(lambda: verdict_of(running) and verdict_of(running).drafting)
        assert running.service.daemon.paused and running.paused_because is not None
        assert await running.service._resume() == {"paused": None}
        await running.drafts(2)


async def test_a_freed_model_is_loaded_before_the_worker_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = Scripted("input", 0, period_s=0.02)
    monkeypatch.setattr(settings, "FREE_AFTER_S", 0.05)
    rule = OwnerSection(idle_s=0, model="free")
    async with serving_worker(tmp_path, [with_signs(rule, sign)]) as running:
        await running.drafts(1)
        daemon = running.service.daemon
        before = running.service.daemon.drafter
        sign.value = 1
        await until(lambda: not daemon.loaded)
        assert daemon.open_requests == 0
        daemon.take(Open(2, 1, len(PROMPT), PROMPT, Sampling()))  # sent before the pause arrived
        await until(lambda: [why for _, _, why in running.gateway.seen.of("decline")] == [FREED])
        sign.value = 0
        await until(lambda: running.paused_because is None)
        assert daemon.loaded and daemon.drafter is not before and daemon.drafter.passes >= before.passes > 0
        await running.drafts(3)


async def test_status_shows_what_was_given_to_whom_and_why_it_stepped_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sign = Scripted("input", 0, period_s=0.02)
    async with serving_worker(tmp_path, [with_signs(SOON, sign, Scripted("gpu", None))]) as running:
        await running.drafts(1)
        sign.value = 1
        await until(lambda: running.paused_because == OWNER_FIRST)
        config = tmp_path / "worker.toml"
        config.write_text(f'[daemon]\nstate_dir = "{tmp_path}/state"\n')
        for options in ([], ["--json"]):
            assert await asyncio.to_thread(command.main, ["status", "--config", str(config), *options]) == 0
        shown, _, last = capsys.readouterr().out.rstrip().rpartition("\n")
        status = json.loads(last)
        assert status["gateway"] == "gw" and status["nodes"] > 0 and status["paused"] == OWNER_FIRST
        (aside,) = status["owner"]["stepped_aside"]
        assert f"{aside['at']} for " in shown and "keyboard or mouse in use" in shown
        assert "off: there is none" in shown and "state         paused: its owner comes first" in shown
