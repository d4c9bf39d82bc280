"""The worker's service: its owner, its admin, penalties that overflow, no GPU, and the priority of its threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgespec import __main__ as command
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.shared import control
from edgespec.shared.settings import overridden
from edgespec.shared.starting import Starting
from edgespec.worker import config, models, start
from edgespec.worker.config import OwnerSection, WorkerSettings
from edgespec.worker.daemon import FREED
from edgespec.worker.service import OWNER_FIRST, load_drafter
from tests.support.owner import Scripted
from tests.support.services import PROMPT, Running, serving_worker, until
from tests.support.tiny_gguf import make_tiny_gguf

SOON = OwnerSection(idle_s=0.3)


@pytest.mark.claim("the-owners-return-reaches-the-gateway-and-ends-drafting")
async def test_the_owners_return_reaches_the_gateway_and_ends_drafting(tmp_path: Path) -> None:
    sign = Scripted("input", 0, period_s=0.02)
    async with serving_worker(tmp_path, SOON, [sign]) as running:
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
    async with serving_worker(tmp_path, SOON, [sign]) as running:
        await running.drafts(1)
        await running.service._pause("exam week")
        await until(lambda: running.paused_because == "exam week")
        sign.value = 1
        await until(lambda: running.service.owner.verdict and not running.service.owner.verdict.drafting)
        assert await running.service._resume() == {"paused": OWNER_FIRST}
        await running.service._pause("exam week")
        sign.value = 0
        await until(lambda: running.service.owner.verdict and running.service.owner.verdict.drafting)
        assert running.service.daemon.paused and running.paused_because is not None
        assert await running.service._resume() == {"paused": None}
        await running.drafts(2)


async def test_a_freed_model_is_loaded_before_the_worker_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = Scripted("input", 0, period_s=0.02)
    monkeypatch.setattr(config, "FREE_AFTER_S", 0.05)
    rule = OwnerSection(idle_s=0, model="free")
    async with serving_worker(tmp_path, rule, [sign]) as running:
        await running.drafts(1)
        daemon, before = running.service.daemon, running.service.daemon.drafter
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
    async with serving_worker(tmp_path, SOON, [sign, Scripted("gpu", None)]) as running:
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


async def test_watching_goes_on_from_the_start_until_the_worker_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "WATCH_S", 0.01)
    handlers: dict[str, control.Handler] = {}
    states = start.watching(handlers)
    handlers["status"] = start.while_starting(Starting("edgespec"))["status"]
    assert (await anext(states))["state"] == "starting"
    async with serving_worker(tmp_path) as running:
        handlers.update(running.service.commands())
        assert (await anext(states))["state"] == "ready"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving_worker(tmp_path) as worker:
        yield worker


@pytest.mark.claim("a-penalty-that-overflows-costs-a-link-and-not-the-service")
@pytest.mark.parametrize("penalty", [1e-307, 1e-310])
async def test_a_penalty_that_overflows_costs_a_link_and_not_the_service(running: Running, penalty: float) -> None:
    await running.drafts(1)
    for number, temperature in ((2, 1.0), (3, 0.0)):
        running.open(number, Sampling(temperature, repetition_penalty=penalty, seed=1))
        await until(lambda n=number: running.task.done() or len(running.gateway.seen.of("down")) == n - 1)  # malformed
        await running.drafts(10 + number)


async def test_no_node_gets_more_children_than_the_gateway_takes(tmp_path: Path) -> None:
    async with serving_worker(tmp_path, branching=2) as worker:
        await worker.drafts(1)
        families = Counter(parent for _, tree in worker.gateway.seen.of("tree") for parent in tree.parents)
        assert max(families.values()) == 2


def test_a_gpu_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = overridden(WorkerSettings(), {"draft.model": str(make_tiny_gguf(tmp_path / "tiny.gguf"))})
    with pytest.raises(ModelError, match="`n_gpu_layers` = 9 asks for a GPU"):
        load_drafter(overridden(settings, {"draft.n_gpu_layers": "9"}))


def nice(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def nices() -> dict[int, int]:
    """Each thread of this process that has not ended meanwhile."""
    found = {}
    for one in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            found[int(one.name)] = nice(int(one.name))
    return found


def test_work_that_is_lowered_leaves_the_calling_thread_alone() -> None:
    before = nice(threading.get_native_id())
    assert models.run_lowered(lambda: nice(threading.get_native_id())) == models.LOWEST_NICE
    assert nice(threading.get_native_id()) == before < models.LOWEST_NICE
    with pytest.raises(ZeroDivisionError):
        models.run_lowered(lambda: 1 // 0)


async def test_what_computes_is_lowered_and_the_event_loop_is_not(tmp_path: Path) -> None:
    before = nice(threading.get_native_id())
    async with serving_worker(tmp_path, priority="idle") as running:
        await running.drafts(1)
        (drafting,) = (one.native_id for one in threading.enumerate() if one.name == "drafting")
        assert drafting is not None and nice(drafting) == models.LOWEST_NICE
        assert nice(threading.get_native_id()) == before
        assert running.loaded_at_nice == [models.LOWEST_NICE]
        threads = set(nices())
        await running.drafts(2)
        await until(lambda: running.service.daemon.stats.steps > 2)
        new = {thread: value for thread, value in nices().items() if thread not in threads}
        assert set(new.values()) <= {models.LOWEST_NICE}
