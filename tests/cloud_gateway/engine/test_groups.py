"""Worker groups: a prompt goes only to workers of a group that its API key names, and the usage names them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.__main__ import main
from cloud_gateway.auth import KeyRing
from cloud_gateway.core.policies import registry
from cloud_gateway.core.requests.request import GenerationRequest, Usage
from cloud_gateway.core.requests.router import LinkedWorker, Merit, choose
from cloud_gateway.engine.exchange import WorkerGone, WorkerReady
from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.errors import KeyStoreError, PairingError
from edgespec.core.pairing.groups import parse_groups
from edgespec.core.protocol.messages import Close, Open
from edgespec.core.protocol.names import key_id
from tests.support.echo import CHAT, ECHOED, echo_gateway, post
from tests.support.engines import Make, complete
from tests.support.pairing import Operator, make_worker, served
from tests.support.until import until
from tools.doubles.engines import TableDraft
from tools.doubles.workers import LoopWorker

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
DEFAULT = frozenset({"default"})
PHYSICS = frozenset({"physics"})


def member(groups: frozenset[str]) -> LoopWorker:
    return LoopWorker(name="lab-7", groups=groups)


async def usage(make: Make, worker: LoopWorker, groups: frozenset[str], count: int = 40, **more: Any) -> Usage:
    request = GenerationRequest(PROMPT, count, ignore_eos=True, groups=groups, **more)
    return (await complete(make(worker, TableDraft(), policy="wanspec"), request))[1].usage


@pytest.mark.claim("a-worker-of-the-keys-group-drafts-and-is-named")
@pytest.mark.driven
async def test_a_worker_of_the_keys_group_drafts_and_is_named(make: Make) -> None:
    worker = member(PHYSICS | DEFAULT)
    found = await usage(make, worker, PHYSICS)
    assert (found.workers, found.why_off) == (["lab-7"], None)
    assert found.frames["used"] > 0


@pytest.mark.claim("a-worker-of-another-group-is-sent-nothing")
async def test_a_worker_of_another_group_is_sent_nothing(make: Make) -> None:
    worker = member(DEFAULT)
    found = await usage(make, worker, PHYSICS | {"chemistry"})
    assert worker.seen == []
    assert found.workers == []
    assert found.why_off == "no worker of this API key's groups (chemistry, physics) is linked"


@pytest.mark.driven
async def test_what_another_groups_worker_taught_is_not_carried_over(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[Any]()
    engine = make(member(DEFAULT), TableDraft(), policy="adaptive")
    real = registry.make
    monkeypatch.setattr(
        registry, "make", lambda settings, learnt, policies: given.append(learnt) or real(settings, learnt, policies)
    )
    for groups in (DEFAULT, DEFAULT, PHYSICS):
        await complete(engine, GenerationRequest(PROMPT, 20, ignore_eos=True, groups=groups))
    assert [learnt is not None for learnt in given] == [False, True, False]


@pytest.mark.driven
async def test_a_request_too_many_for_its_worker_gets_it_when_it_is_free(make: Make) -> None:
    worker = LoopWorker(requests=1)
    engine = make(worker, TableDraft(), policy="wanspec")
    first = asyncio.ensure_future(complete(engine, GenerationRequest(PROMPT, 40, ignore_eos=True)))
    await until(lambda: any(isinstance(body, Open) for body in worker.seen))
    second = asyncio.ensure_future(complete(engine, GenerationRequest([*PROMPT, 7], 400, ignore_eos=True)))
    usages = [(await one)[1].usage for one in (first, second)]
    assert [one.workers for one in usages] == [["w"], ["w"]]
    kinds = [type(body) for body in worker.seen if isinstance(body, Open | Close)]
    assert kinds == [Open, Close, Open, Close], "never two at once"


@pytest.mark.claim("a-worker-of-another-group-is-sent-nothing")
@pytest.mark.driven
async def test_a_worker_put_into_another_group_loses_its_requests_at_once(make: Make) -> None:
    worker = member(DEFAULT)
    running = asyncio.ensure_future(usage(make, worker, DEFAULT, 400))
    await until(lambda: any(isinstance(body, Open) for body in worker.seen))
    engine = worker.engine
    worker.worker = replace(worker.worker, groups=PHYSICS)
    assert engine is not None
    engine.post(WorkerGone("w"))
    engine.post(WorkerReady("w"))
    await until(lambda: any(isinstance(body, Close) for body in worker.seen))
    seen = len(worker.seen)
    found = await running
    assert len(worker.seen) == seen, "nothing follows the close"
    assert found.workers == ["lab-7"], "it has read the prompt"
    assert found.why_off == "no worker of this API key's groups (default) is linked"


def test_the_router_asks_the_nearest_of_the_group() -> None:
    workers = [
        LinkedWorker("near", 0.001, 0.001, 0.001, paused=False, groups=PHYSICS),
        LinkedWorker("far", 0.1, 0.1, 0.001, paused=False, groups=DEFAULT | PHYSICS),
        LinkedWorker("away", 0.001, 0.001, 0.001, paused=True, groups=DEFAULT),
    ]
    assert choose(workers, {}, DEFAULT, Merit()) == "far"
    assert choose(workers, {}, PHYSICS, Merit()) == "near"
    assert choose(workers, {}, PHYSICS, Merit(), exclude={"near"}) == "far"
    assert choose(workers, {"near": 200}, PHYSICS, Merit()) == "far", "its step time is shared by its requests"
    assert choose(workers, {}, frozenset({"chemistry"}), Merit()) is None


def test_a_worker_of_flat_passes_is_filled_and_one_of_steep_ones_is_not() -> None:
    flat = ((1, 0.008), (8, 0.01))
    steep = ((1, 0.005), (8, 0.04))
    workers = [
        LinkedWorker("flat", 0.02, 0.02, 0.001, paused=False, draft_points=flat, requests=8),
        LinkedWorker("steep", 0.02, 0.02, 0.001, paused=False, draft_points=steep),
    ]
    load: Counter[str] = Counter()
    order = []
    for _ in range(12):
        worker = choose(workers, load, DEFAULT, Merit())
        assert worker is not None
        load[worker] += 1
        order.append(worker)
    assert order == ["steep", *["flat"] * 8, *["steep"] * 3]
    assert choose(workers[:1], load, DEFAULT, Merit()) is None, "it takes 8"


@pytest.mark.parametrize("name", ["", "Physics", "a b", "-a", "a" * 33, "a\n", "\u0430", "../x"])
def test_a_name_that_is_no_groups_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a group"):
        parse_groups([name])


def test_lists_of_earlier_versions_mean_the_default_group(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    paired = PairedWorkers(tmp_path)
    ring.create("old", offload=True)
    paired.add(b"w" * 32, "old")
    for file in (tmp_path / "api-keys.json", tmp_path / "workers.json"):
        stored = json.loads(file.read_text())
        for record in stored.get("keys", []) + stored.get("records", []):
            record.pop("groups", None)
        file.write_text(json.dumps(stored))
    (key,), (worker,) = KeyRing(tmp_path).all(), PairedWorkers(tmp_path).all()
    assert key.groups == worker.groups == ("default",)


def test_pairing_again_keeps_a_workers_groups_unless_others_are_given(tmp_path: Path) -> None:
    paired = PairedWorkers(tmp_path)
    assert paired.add(b"w" * 32, "lab-7", groups=("physics",)).groups == ("physics",)
    assert paired.add(b"w" * 32, "lab-7").groups == ("physics",)
    assert paired.regroup("lab-7", ["b", "a"]).groups == ("b", "a")
    assert paired.groups_of(b"w" * 32) == {"a", "b"}
    assert paired.groups_of(b"x" * 32) == frozenset()
    with pytest.raises(PairingError, match="not the name of a group"):
        paired.regroup("lab-7", ["A B"])


async def test_pair_puts_the_worker_into_the_groups_that_it_is_given(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        worker = make_worker(tmp_path)
        operator = Operator(gateway.desk, ["physics", "trusted"])
        await worker.pair(gateway, await operator.code())
        await operator.done
        assert gateway.workers.find("lab-7").groups == ("physics", "trusted")


def test_commands_show_and_change_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    keys = tmp_path / "edgespec" / "gateway" / "keys"
    worker = PairedWorkers(keys).add(b"w" * 32, "lab-7")
    assert main(["workers", "group", key_id(worker.key)[:6], "physics", "trusted"]) == 0
    assert "is now in: physics trusted" in capsys.readouterr().out
    main(["workers", "list"])
    assert "physics trusted" in capsys.readouterr().out
    assert main(["keys", "create", "--name", "ann", "--offload"]) == 0
    assert "workers of these groups may see its prompts: default." in capsys.readouterr().out
    assert main(["keys", "create", "--name", "bob", "--offload", "physics", "trusted"]) == 0
    assert "may see its prompts: physics trusted." in capsys.readouterr().out
    assert main(["keys", "create", "--name", "cid"]) == 0
    assert [(key.offload, key.groups) for key in KeyRing(keys).all()] == [
        (True, ("default",)),
        (True, ("physics", "trusted")),
        (False, ("default",)),
    ]
    capsys.readouterr()
    main(["keys", "list", "--json"])
    assert [row["groups"] for row in json.loads(capsys.readouterr().out)["keys"]] == [
        ["default"],
        ["physics", "trusted"],
        [],
    ]
    assert main(["keys", "create", "--offload", "Not A Group"]) == KeyStoreError.exit_code
    assert main(["workers", "group", "lab-7", "Not A Group"]) == PairingError.exit_code


async def test_a_request_carries_the_groups_of_its_key(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path) as echo:
        _, secret = echo.keys.create("bob", offload=True, groups=["physics", "trusted"])
        asked = {**CHAT, "edgespec": {"usage": True}}
        status, body, headers = await post(echo, asked, Authorization=f"Bearer {secret}")
    assert (status, body["choices"][0]["message"]["content"]) == (200, ECHOED)
    (request,) = echo.engine.requests
    assert request.groups == {"physics", "trusted"}
    assert (request.id, request.key_name) == (headers["x-request-id"], "bob")
    assert body["usage"]["edgespec"]["workers"] == []
