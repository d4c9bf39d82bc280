"""The worker's service: its admin, penalties that overflow, no GPU, and the priority of its threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgespec.core.errors import ModelError, TokenizerMismatch
from edgespec.core.protocol.messages import Sampling
from edgespec.shared import control
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.shared.settings import overridden
from edgespec.shared.starting import Starting
from edgespec.worker import models, start
from edgespec.worker.config import WorkerSettings
from edgespec.worker.service import Service, load_drafter
from tests.support.links import GATEWAY_KEY, TOKENIZER, serving
from tests.support.services import Running, listed, service_of, serving_worker, until
from tests.support.tiny_gguf import make_tiny_gguf


async def test_watching_goes_on_from_the_start_until_the_worker_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "WATCH_S", 0.01)
    handlers: dict[str, control.Handler] = {}
    states = start.watching(handlers)
    handlers["status"] = start.while_starting(Starting("edgespec"), ())["status"]
    assert (await anext(states))["state"] == "starting"
    async with serving_worker(tmp_path) as running:
        handlers.update(running.service.commands())
        assert (await anext(states))["state"] == "ready"


async def test_systemd_counts_a_worker_as_started_that_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that loads for minutes beside other programs is no reason for systemd to end the worker."""
    monkeypatch.setattr(start, "READY_S", 0.2)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "systemd"))
    loads = threading.Event()

    def make(settings: WorkerSettings, starting: Starting) -> Service:
        loads.wait(60)
        raise ModelError("enough")

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "systemd"))
        systemd.settimeout(30)
        settings = overridden(WorkerSettings(), {"daemon.state_dir": str(tmp_path / "state")})
        running = asyncio.ensure_future(start.run(settings, make=make))
        assert await asyncio.to_thread(systemd.recv, 100) == b"READY=1"
        loads.set()
        with pytest.raises(ModelError, match="enough"):
            await running


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


async def test_a_target_of_another_tokenizer_ends_a_worker_without_a_part_for_it(tmp_path: Path) -> None:
    other = b"\xee" * 32
    store = KeyStore(tmp_path / "state")
    async with serving(tmp_path, paired=[listed(store)], tokenizer=other) as gateway:
        PairedGateways(store.folder).add(GATEWAY_KEY.public, gateway.pin.spki_hash, "gw", str(gateway.address), 1)
        async with service_of(tmp_path) as (_, task, _):
            with pytest.raises(TokenizerMismatch) as error:
                await asyncio.wait_for(task, 30)

    assert TOKENIZER.hex()[:16] in str(error.value) and other.hex()[:16] in str(error.value)
    assert "set the worker's `draft.model` to a draft of the target's family" in str(error.value)


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
