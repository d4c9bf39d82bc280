"""`edgespec doctor` on planted faults: real sockets, real TLS, a real worker; the worker's report for the rest."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec import __main__ as command
from edgespec.core.errors import LibraryError
from edgespec.core.protocol.handshake import Pin, notice_of
from edgespec.parts.doctor import checks as doctor
from edgespec.parts.doctor.checks import ASIDE, Finding, examine, exit_code
from edgespec.shared.address import Address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.worker.config import load
from edgespec.worker.part import Permission, Presence, WorkerPart
from tests.support.links import GATEWAY_KEY, serving, worker_identity
from tests.support.services import serving_worker, until
from tests.support.sockets import reserved
from tests.support.tiny_gguf import make_tiny_gguf

NO_SEARCH = "the part that searches networks is removed"
NOBODY = Pin(bytes(32), bytes(32))
WELL: dict[str, Any] = {
    "linked": True, "gateway": "gw", "paused": None, "aside": None, "requests": 3,
    "tokens_committed": 1000, "tokens_matched": 700, "step_ms": 4.0, "frames": 9,
    "uptime_s": 900,
}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "planted", "code", "do"),
    [
        (doctor.linked, {"linked": False}, 69, "addresses"),
        (
            doctor.paused,
            {"paused": "busy", "aside": {"because": "a job runs", "do": "wait for it"}},
            ASIDE,
            "wait for it",
        ),
        (doctor.paused, {"paused": "exam week"}, ASIDE, "edgespec resume"),
        (doctor.assigned_requests, {"requests": 0}, ASIDE, "keys list"),
        (doctor.matched, {"tokens_matched": 100}, 66, "draft.model"),
        (
            doctor.matched,
            {"books": {"tokens": 2457, "accepted": 157, "verified": 194, "frames": 9, "late": 7}},
            ASIDE,
            "less busy or faster",
        ),
        (
            doctor.matched,
            {"books": {"tokens": 2457, "accepted": 157, "verified": 900, "frames": 9, "late": 1}},
            66,
            "draft.model",
        ),
    ],
)
def test_a_fault_in_the_workers_report_is_found(check: Any, planted: dict[str, Any], code: int, do: str) -> None:
    assert check(WELL).exit_code == 0 and not check(WELL).do
    found = check(WELL | planted)
    assert found.exit_code == code and do in found.do


def test_a_worker_that_was_just_started_need_not_have_a_request() -> None:
    found = doctor.assigned_requests(WELL | {"requests": 0, "uptime_s": 20})
    assert found.exit_code == 0 and not found.do and "20 s ago" in found.says


def test_a_few_tokens_do_not_condemn_a_draft_model() -> None:
    assert doctor.matched(WELL | {"tokens_committed": 50, "tokens_matched": 0}).exit_code == 0


def test_a_slow_model_and_a_clock_that_is_behind_are_found() -> None:
    assert doctor.speed(0.004).exit_code == doctor.speed(None).exit_code == 0
    assert doctor.speed(0.3).exit_code == 66
    assert doctor.clock(2000.0, 1000.0).exit_code == 0
    assert doctor.clock(999.0, 1000.0).exit_code == 78


BUSY = "this machine is busy: its load is 45.0 on 2 processors"


@pytest.mark.parametrize(
    "found",
    [
        doctor.speed(1.042, busy=BUSY),
        doctor.speed(1.042, undisturbed_s=0.02),
        doctor.speed(1.042, undisturbed_s=0.02, busy=BUSY),
        doctor.matched(WELL | {"tokens_matched": 100}, BUSY),
        doctor.matched(WELL | {"books": {"tokens": 2457, "accepted": 9, "verified": 19, "frames": 9, "late": 7}}, BUSY),
    ],
)
def test_a_busy_machine_is_not_blamed_on_the_draft(found: Finding) -> None:
    assert found.exit_code == ASIDE and "draft.model" not in found.do and "again" in found.do
    assert BUSY in found.says or "20.0 ms if nothing else uses this machine" in found.says


def test_a_model_that_is_slow_on_an_idle_machine_is_blamed() -> None:
    assert doctor.speed(1.042, undisturbed_s=0.9).exit_code == 66
    books = {"tokens": 2457, "accepted": 9, "verified": 900, "frames": 9, "late": 1}
    assert doctor.matched(WELL | {"books": books}, BUSY).exit_code == 66, "the target refused them: no load does that"


def test_a_worker_that_never_finished_a_step_is_starved_not_slow() -> None:
    """A stalled worker: 597 s of drafting, 1302 tokens committed without it."""
    stalled = doctor.speed(None, 597.0)
    assert "no step was ever finished in 597 s of drafting" in stalled.says
    assert "draft.threads" in stalled.do and "draft.model" not in stalled.do
    match = doctor.matched(WELL | {"tokens_committed": 1302, "tokens_matched": 0, "frames": 0})
    assert match.exit_code == 0 and "cannot be judged" in match.says


def test_the_first_fault_gives_the_exit_code() -> None:
    found = [Finding("a", "well"), Finding("b", "bad", "do", 77), Finding("c", "worse", "do", 69)]
    assert exit_code(found) == 77 and exit_code(found[:1]) == 0


async def test_a_gateway_with_another_tls_key_is_not_the_paired_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        assert (await doctor.address(gateway.address, gateway.pin)).exit_code == 0
        other = await doctor.address(gateway.address, Pin(gateway.pin.gateway_key, b"\1" * 32))
        assert other.exit_code == 77 and "pair again" in other.do


async def test_a_port_without_a_program_or_with_another_one_is_said() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-no\r\n")
        await writer.drain()
        writer.close()

    with reserved() as port:
        server = await asyncio.start_server(plain, "127.0.0.1", port)
        where = Address("127.0.0.1", port)
        assert "TLS" in (await doctor.address(where, NOBODY)).says
        server.close()
        await server.wait_closed()
        assert "no program listens" in (await doctor.address(where, NOBODY)).says


async def test_packets_that_are_dropped_are_taken_for_a_firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CONNECT_S", 0.3)
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # the kernel drops what a full queue has no room for, as a firewall would
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        found = await doctor.address(Address(*full.getsockname()), NOBODY)
    assert found.exit_code == 69 and "firewall" in found.says


async def test_silent_mdns_is_a_fault_only_where_it_is_needed() -> None:
    browser = pytest.importorskip("edgespec.parts.mdns.browser", reason=NO_SEARCH)
    none = await doctor.announced(browser.Browser(["none"]), needed=True, wait_s=0.05)
    assert none.exit_code == 69 and "no interface" in none.says and "5353" in none.do and "gateway runs" not in none.do
    silent = await doctor.announced(browser.Browser(["lo"], wanted="0" * 16), needed=True, wait_s=0.05)
    assert silent.exit_code == 69 and "5353" in silent.do and "whether the gateway runs" in silent.do
    assert (await doctor.announced(browser.Browser(["none"]), needed=False, wait_s=0.05)).exit_code == 0


async def test_no_firewall_is_blamed_while_the_gateway_is_down(tmp_path: Path) -> None:
    """The whole examination of a worker whose gateway's machine refuses connections."""
    search = pytest.importorskip("edgespec.parts.mdns", reason=NO_SEARCH)
    with reserved() as port:
        store = KeyStore(tmp_path / "state")
        PairedGateways(store.folder).add(GATEWAY_KEY.public, bytes(32), "gw", f"127.0.0.1:{port}", 1)
        settings = load(config(tmp_path, "/nowhere.gguf"), [search.PART])
        found = [finding async for finding in examine(lambda: settings)]
    advice = {finding.check: finding.do for finding in found}
    assert "start the gateway" in advice[f"address 127.0.0.1:{port}"]
    assert advice["mDNS"] == "start the gateway; it announces itself then"
    assert not any("firewall" in do or "5353" in do for do in advice.values())


@pytest.mark.claim("copies-of-a-workers-key-keep-it-out-only-while-they-link")
@pytest.mark.parametrize("reason", ["quarantined", "unpaired", "superseded"])
def test_a_notice_of_the_gateway_is_a_fault_with_its_remedy(reason: str) -> None:
    notice = notice_of(reason, "7ba1073c5e2f9d40")
    assert notice is not None
    found = doctor.linked(WELL | {"refused": notice.text, "refused_because": reason, "linked": reason == "superseded"})
    assert found.exit_code == 77 and found.do == notice.text and found.says == doctor.NOTICED[reason]
    assert doctor.linked(WELL).exit_code == 0


async def test_the_handshake_of_a_worker_that_is_not_listed_says_so(tmp_path: Path) -> None:
    me = worker_identity()
    async with serving(tmp_path) as gateway:
        gateway.standing[me.key.public] = "unpaired"
        found = await doctor.handshake(me, gateway.pin, [gateway.address])
    assert found.exit_code == 77 and "does not name this worker" in found.says and "edgespec pair" in found.do


async def test_the_gateways_judgement_is_found(tmp_path: Path) -> None:
    me = worker_identity()
    async with serving(tmp_path) as gateway:
        where = [gateway.address]
        assert (await doctor.handshake(me, gateway.pin, where)).exit_code == 0
        vocabulary = await doctor.handshake(replace(me, tokenizer_digest=b"\1" * 32), gateway.pin, where)
        assert vocabulary.exit_code == 65 and "draft.model" in vocabulary.do
        gateway.standing[me.key.public] = "revoked"
        revoked = await doctor.handshake(me, gateway.pin, where)
        assert revoked.exit_code == 77 and "edgespec pair" in revoked.do


def config(tmp_path: Path, model: str = "auto:quantised") -> Path:
    path = tmp_path / "worker.toml"
    path.write_text(f'[draft]\nmodel = "{model}"\nthreads = 1\n[daemon]\nstate_dir = "{tmp_path}/state"\n')
    return path


def test_a_worker_that_was_never_paired_is_said_with_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["doctor", "--json", "--config", str(config(tmp_path))]) == 77
    (line,) = capsys.readouterr().out.splitlines()
    assert "edgespec pair" in json.loads(line)["do"]


def refuse(model: Path, gpu_layers: int, *, again: bool) -> bool:
    """A trial that no model passes, asked for one that may have passed before."""
    assert again
    raise LibraryError(f"llama.cpp is killed by SIGILL in a trial with {model.name}")


async def test_a_stopped_worker_is_examined_up_to_the_gateways_judgement(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    async with serving(tmp_path) as gateway:
        store = KeyStore(tmp_path / "state")
        PairedGateways(store.folder).add(GATEWAY_KEY.public, gateway.pin.spki_hash, "gw", str(gateway.address), 1)
        gateway.standing[store.identity().public] = "paired"
        found = {one.check: one async for one in examine(lambda: load(config(tmp_path, str(model))))}
        assert found[f"address {gateway.address}"].exit_code == 0
        assert found["worker"].exit_code == ASIDE and found["speed"].exit_code == 0
        assert found["handshake"].exit_code == 65  # the tiny model has a vocabulary of its own
        lost = {one.check: one async for one in examine(lambda: load(config(tmp_path, "/nowhere.gguf")))}
        assert lost["model"].exit_code == 66 and "handshake" not in lost
        tried = [WorkerPart("trials", trial=refuse)]
        broken = {one.check: one async for one in examine(lambda: load(config(tmp_path, str(model)), tried))}
        assert broken["model"].exit_code == 70 and "is killed by SIGILL" in broken["model"].says


class Aside(Presence):
    """Forbids drafting."""

    @property
    def permission(self) -> Permission:
        return Permission(False, "busy", "a job runs", "wait for it")


async def test_a_running_worker_that_stepped_aside_is_said(tmp_path: Path) -> None:
    part = WorkerPart("aside", presence=lambda settings, changed: Aside())
    async with serving_worker(tmp_path, [part]) as running:
        await until(lambda: running.service._link)
        found = {one.check: one async for one in examine(lambda: load(config(tmp_path)))}
        assert found["pause"] == Finding("pause", "the worker stepped aside: a job runs", "wait for it", ASIDE)
        assert "worker" not in found and found["link"].exit_code == 0
