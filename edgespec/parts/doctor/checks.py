"""`edgespec doctor`: finds out why no gateway is found or nothing is drafted, and what to do.

`examine` runs all checks in the order in which a worker depends on them. First are those that need only what the
running worker reports, then those that go over the network: addresses, the pinned key, the handshake, announcements.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from edgespec.core.errors import AddressError, EdgespecError, NoGatewayError, RemoteProtocolError
from edgespec.core.protocol.handshake import Notice, Pin, WorkerIdentity
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.worth import LATE, helps, judged, late_share, verdict
from edgespec.llamacpp.step_time import measured_curve
from edgespec.shared import control_client as control
from edgespec.shared import folders
from edgespec.shared.address import Address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.models import resolve_model
from edgespec.shared.nearby import Finder
from edgespec.shared.paired import PairedGateway, PairedGateways
from edgespec.shared.part import nearby_of, require_trials
from edgespec.shared.procstat import busy_because
from edgespec.shared.tls import client_context, trusted
from edgespec.worker.config import WorkerSettings
from edgespec.worker.dial import GatewayAddresses
from edgespec.worker.link import Handler, Link, keep_linked
from edgespec.worker.models import identity, load_drafter, target_tokens
from edgespec.worker.report import figures_in
from edgespec.worker.service import paired_gateway

ASIDE = 75
"""Exit code (EX_TEMPFAIL) if the worker is well and does not draft at present."""
MAX_STEP_S = 0.1
"""Seconds of a draft step over one leaf. A target that emits ten tokens a second is faster than this without drafts."""
MIN_MATCHED = 0.3
"""Share of committed tokens that the worker had drafted. Every policy waits longer than it gains below it."""
MIN_COMMITTED = 200
"""Committed tokens before that share says anything."""
STALLED_S = 10.0
"""Seconds of drafting without a finished step, a hundred times what a step may take."""
UNASKED_S = 300
"""Seconds after its start in which nobody may have asked for a completion."""
AGAIN = "let it draft while this machine is idle, and run `edgespec doctor` again then; `top` shows what runs here"
"""The remedy on a busy machine, on which nothing can be said about the draft model."""
WARNINGS = 3
"""Latest different ones that are shown."""
DO = {
    65: "set `draft.model` to a model with the target's vocabulary",
    66: "correct `draft.model` in worker.toml; `edgespec models fetch auto:quantised` fetches the demo's",
    73: "restore the state folder from a backup, or pair again",
    77: "ask the operator for a code (`cloud-gateway pair`) and run `edgespec pair CODE`",
    78: "correct the file that is named; `edgespec config` explains every key",
}
"""The remedy of an error, by its exit code."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    says: str
    do: str = ""
    """The remedy; empty if there is nothing to do."""
    exit_code: int = 0
    """That of the process if this is the first fault; 0: no fault."""


def paused(status: Mapping[str, Any]) -> Finding:
    """Whether the running worker stepped aside, is paused by its admin, or loads its model."""
    if status["paused"] is None:
        return Finding("pause", "the worker drafts when it gets a request")

    aside = status.get("aside")
    if aside:
        return Finding("pause", f"the worker stepped aside: {aside['because']}", aside["do"], ASIDE)

    return Finding("pause", f"the worker is paused: {status['paused']}", "`edgespec resume`", ASIDE)


NOTICED: Mapping[str, str] = {
    "quarantined": "the gateway has quarantined this worker",
    "unpaired": "the gateway's list does not name this worker",
    "superseded": "another process links with this worker's key, and the two end each other's links",
    "tokenizer": "the target has another tokenizer, by which this worker's draft model cannot draft",
}
"""The fault, by the reason of a notice (core/protocol/handshake.py); its text is the remedy."""


def linked(status: Mapping[str, Any]) -> Finding:
    if status.get("refused"):
        reason = status["refused_because"]
        return Finding("link", NOTICED[reason], status["refused"], 65 if reason == "tokenizer" else 77)
    if status["linked"]:
        return Finding("link", f"linked to {status['gateway']}")

    do = "see the checks of addresses below; `edgespec run` logs each attempt"
    return Finding("link", f"the worker runs, but has no link to {status['gateway']}", do, 69)


def assigned_requests(status: Mapping[str, Any]) -> Finding:
    """Whether the gateway assigns requests to it; only its operator can see why not."""
    if status["requests"] or not status["linked"]:
        return Finding("requests", f"{status['requests']} requests were assigned to this worker")
    if status["uptime_s"] < UNASKED_S:
        return Finding("requests", f"linked, with no request yet; it was started {status['uptime_s']} s ago")

    do = (
        "ask the operator for an API key that allows offloading to this worker's group (`cloud-gateway keys list`, "
        "`cloud-gateway workers list`), and for `why_off` in the usage of a request"
    )
    return Finding("requests", "linked, but no request was assigned to this worker", do, ASIDE)


def matched(status: Mapping[str, Any], busy: str = "") -> Finding:
    """Whether the worker helps, by the gateway's figures if it has sent any. `busy`: why this machine is, if it is."""
    figures = figures_in(status)
    if figures is None or not figures.tokens:
        return draft_matched(status, busy)

    if helps(figures) or not judged(figures):
        return Finding("match", f"this worker {verdict(figures)}")
    if late_share(figures) >= LATE and busy:
        return Finding("match", f"this worker {verdict(figures)}; {busy}", AGAIN, ASIDE)
    if late_share(figures) >= LATE:
        do = "draft on a less busy or faster machine, use a smaller draft model, or one nearer to the gateway"
        return Finding("match", f"this worker {verdict(figures)}", do, ASIDE)
    do = "use a larger or less reduced draft model of the target's family (`draft.model`)"
    return Finding("match", f"this worker {verdict(figures)}", do, 66)


def draft_matched(status: Mapping[str, Any], busy: str = "") -> Finding:
    """Whether the draft was right often enough, in time or not: what the worker can say alone."""
    committed = status["tokens_committed"]
    if not status["frames"]:
        return Finding("match", "no candidate of this worker was sent, so the draft model cannot be judged")

    share = status["tokens_matched"] / committed if committed else 0.0
    if committed < MIN_COMMITTED or share >= MIN_MATCHED:
        return Finding("match", f"{share:.0%} of {committed} committed tokens were drafted before")

    says = f"only {share:.0%} of {committed} committed tokens were drafted before"
    if busy:
        return Finding("match", f"{says}; {busy}", AGAIN, ASIDE)

    do = "use a larger or less reduced draft model of the target's family (`draft.model`)"
    return Finding("match", says, do, 66)


def speed(step_s: float | None, drafting_s: float = 0.0, undisturbed_s: float | None = None, busy: str = "") -> Finding:
    """Whether a draft step is fast enough to be of use; None: none was finished in `drafting_s` of drafting.

    `undisturbed_s`: the same step when nothing else used the machine, if that was measured; `busy`: why the machine is.
    """
    if step_s is None and drafting_s < STALLED_S:
        return Finding("speed", "no draft step was made yet")
    if step_s is None:
        says = f"no step was ever finished in {drafting_s:.0f} s of drafting: the machine starves it, or threads stall"
        return Finding("speed", says, "set `draft.threads = 1`, and see what else runs here (`top`)", ASIDE)
    if step_s <= MAX_STEP_S:
        return Finding("speed", f"a draft step takes {step_s * 1e3:.1f} ms")

    says = f"a draft step takes {step_s * 1e3:.0f} ms, which is too slow to be of use"
    if undisturbed_s is not None and undisturbed_s <= MAX_STEP_S:
        says = f"{says}, but {undisturbed_s * 1e3:.1f} ms if nothing else uses this machine"
        return Finding("speed", "; ".join(filter(None, (says, busy))), AGAIN, ASIDE)
    if busy:
        return Finding("speed", f"{says}; {busy}", AGAIN, ASIDE)

    do = "use a smaller or quantised draft model (`draft.model`), more threads (`draft.threads`) or another machine"
    return Finding("speed", says, do, 66)


def seconds(ms: float | None) -> float | None:
    if ms is None:
        return None
    return ms / 1e3


def logged(status: Mapping[str, Any]) -> Finding:
    """The latest warnings in the log of the running worker."""
    texts = list(dict.fromkeys(one["text"] for one in status["warnings"]))[-WARNINGS:]
    return Finding("log", "; ".join(texts) if texts else "no warning since the start")


def clock(now: float, paired_at: float) -> Finding:
    """Whether the clock is before the time of pairing; both in seconds since 1970. Only `owner.hours` depends on it."""
    if now >= paired_at:
        return Finding("clock", "the clock is later than the pairing")
    do = "set it, for example with `timedatectl set-ntp true`; `owner.hours` and the times in logs are wrong until then"
    return Finding("clock", "the clock of this machine is before the time at which it was paired", do, 78)


CONNECT_S = 3.0
"""A TCP connection on a campus takes milliseconds; a packet that is lost twice, 3 s (RFC 6298)."""
SEARCH_S = 3.0
"""An announcement answers a query within 120 ms (RFC 6762, section 6), unless packets are lost."""
NO_PROGRAM = "the machine is there, but no program listens on this port"
LINK_S = 15.0
"""Time for the handshake; the gateway's own limit is shorter."""


async def address(where: Address, pin: Pin) -> Finding:
    """Whether the paired gateway is at this address: name, TCP, TLS, the pinned key or its successor."""
    check = f"address {where}"
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(where.host, where.port, ssl=client_context())
    except TimeoutError:
        do = f"open TCP port {where.port} in the firewalls between this machine and the gateway, or correct the address"
        return Finding(check, "nothing answers, not even with a refusal: a firewall may drop the packets", do, 69)
    except ConnectionRefusedError:
        do = "start the gateway, or correct host and port (`gateway.address` in worker.toml)"
        return Finding(check, NO_PROGRAM, do, 69)
    except socket.gaierror:
        return Finding(check, "this name has no address", "correct the name, or use the machine's IP address", 69)
    except ssl.SSLError:
        return Finding(check, "what listens there does not use TLS 1.3, so it is no gateway", "correct the address", 69)
    except OSError as error:
        do = "check the network cable, the route and the firewall of this machine"
        return Finding(check, f"no connection can be made ({error.strerror or type(error).__name__})", do, 69)
    with contextlib.closing(writer):
        return pinned(check, pin, writer.get_extra_info("ssl_object"))


def pinned(check: str, pin: Pin, connection: ssl.SSLObject) -> Finding:
    """Whether the machine at the other end has the TLS key of the paired gateway."""
    try:
        found = trusted(pin, connection)
    except RemoteProtocolError as error:
        do = "correct the address; if the gateway got new keys, ask its operator for a code and pair again"
        return Finding(check, f"another machine answers than the paired gateway: {error}", do, 77)
    if found == pin:
        return Finding(check, "the paired gateway answers")

    return Finding(check, "the paired gateway answers; it has rotated its identity, which the next link stores")


async def announced(finder: Finder, needed: bool, down: bool = False, wait_s: float = SEARCH_S) -> Finding:
    """Whether the search of the network shows the wanted gateway; `needed`: no other address is available.

    `down`: the gateway's machine refused a connection. Its firewall passes packets then, and no advice about one would
    help: a gateway that does not run announces nothing.
    """
    await finder.start()
    try:
        await finder.until(lambda: bool(finder.found()), wait_s)
        found = finder.found()
        problem = finder.problem
    finally:
        await finder.close()

    method = finder.method
    if found:
        return Finding(method, f"shows the gateway at {found[0].addresses[0]}")
    if down:
        says = "nobody announces the paired gateway, and its machine says that no program listens at its address"
        return Finding(method, says, "start the gateway; it announces itself then", 69 if needed else 0)

    if problem:
        says = f"{method} does not work here ({problem})"
    else:
        says = f"{method} works, but nobody announces the paired gateway"
    do = (
        f"allow {finder.needs}; routers do not pass it on, so set `gateway.address` in worker.toml to the gateway's "
        "address"
    )
    if not problem:
        do = f"see whether the gateway runs; if it does, {do}"
    return Finding(method, says, do if needed else "", 69 if needed else 0)


@dataclass(slots=True)
class _Once(Handler):
    """A link's handler that ends the link as soon as it is authenticated."""

    up: asyncio.Event = field(default_factory=asyncio.Event)

    def on_up(self, link: Link) -> None:
        self.up.set()


async def handshake(me: WorkerIdentity, pin: Pin, addresses: Sequence[Address]) -> Finding:
    """One link: pairing, protocol version and vocabulary, as the gateway judges them."""
    handler = _Once()
    notices: list[Notice] = []

    async def one_round(wait_s: float) -> None:
        raise NoGatewayError("The gateway ends the link before it is authenticated.")

    async def where() -> Sequence[Address]:
        return addresses

    link = asyncio.ensure_future(
        keep_linked(where, me, pin, handler, rng=random.Random(), sleep=one_round, noticed=notices.append)
    )
    up = asyncio.ensure_future(handler.up.wait())
    await asyncio.wait([link, up], timeout=LINK_S, return_when=asyncio.FIRST_COMPLETED)
    try:
        if handler.up.is_set():
            return Finding("handshake", "the gateway takes this worker: pairing, version and vocabulary agree")
        if link.done():
            link.result()
        return Finding("handshake", f"no end within {LINK_S:g} s", "see the gateway's log", 69)
    except RemoteProtocolError as error:
        if error.reason == "version":
            do = "install the same release of edgespec on both machines"
        else:
            do = "see docs/protocol.md"
        return Finding("handshake", str(error), do, error.exit_code)
    except EdgespecError as error:
        if notices:
            return Finding("handshake", NOTICED[notices[0].reason], notices[0].text, 77)
        return Finding("handshake", str(error), DO.get(error.exit_code, "see the gateway's log"), error.exit_code)
    finally:
        for task in (link, up):
            task.cancel()
        await asyncio.gather(link, up, return_exceptions=True)


def fault(check: str, error: EdgespecError) -> Finding:
    return Finding(check, str(error), DO.get(error.exit_code, ""), error.exit_code)


def exit_code(found: Sequence[Finding]) -> int:
    """That of the first fault; 0 if there is none."""
    return next((one.exit_code for one in found if one.exit_code), 0)


async def examine(configured: Callable[[], WorkerSettings]) -> AsyncIterator[Finding]:
    """Each finding as it is made. A fault on which the later checks depend ends the examination.

    `configured` may raise ConfigError.
    """
    try:
        settings = configured()
        store = KeyStore(folders.state_dir("worker", settings.daemon.state_dir))
        gateways = PairedGateways(store.folder)
        gateway = paired_gateway(gateways)
        identity = store.identity()
    except EdgespecError as error:
        yield fault("setup", error)
        return
    yield Finding("setup", f"paired with {gateway.name}; this worker's id is {key_id(identity.public)}")
    yield clock(time.time(), gateway.paired_at)
    status = await _running(settings)
    if status is not None:
        if status.get("state") == "starting":
            says = f"it is starting: {status['doing']}"
            yield Finding("worker", "; ".join(filter(None, (says, status["busy"]))), "wait until it is ready", ASIDE)
            return
        busy = busy_because()
        for check in (linked, paused, assigned_requests):
            yield check(status)
        yield matched(status, busy)
        yield logged(status)
        yield speed(seconds(status["step_ms"]), status["drafting_s"], seconds(status.get("timed_step_ms")), busy)
    where = await GatewayAddresses(gateways, gateway.key, settings.gateway.address, None).now()
    reached: list[Address] = []
    is_down = False
    for one in where:
        finding = await address(one, gateway.pin)
        if not finding.exit_code:
            reached.append(one)
        is_down = is_down or finding.says == NO_PROGRAM
        yield finding

    finder = nearby_of(settings.parts, settings).gateway_finder(key_id(gateway.key))
    if finder is not None:
        yield await announced(finder, needed=not reached, down=is_down)
    elif not where:
        says = "no address is set, and nothing searches for the gateway"
        yield Finding("address", says, "set `gateway.address` in worker.toml", 78)
    if status is None:
        async for finding in _not_running(settings, gateway, store, reached):
            yield finding


async def _running(settings: WorkerSettings) -> Mapping[str, Any] | None:
    """The status of the worker that runs on this state; None: none does."""
    socket = folders.find_socket("worker", settings.daemon.state_dir)
    try:
        status: Mapping[str, Any] = await asyncio.to_thread(control.call, socket, "status", timeout_s=5.0)
    except AddressError:
        return None
    return status


async def _not_running(
    settings: WorkerSettings, gateway: PairedGateway, store: KeyStore, reached: Sequence[Address]
) -> AsyncIterator[Finding]:
    """What a running worker would have reported: its model, its speed, the gateway's judgement."""
    yield Finding("worker", "it does not run", "`edgespec run`, or `systemctl start edgespec`", ASIDE)
    try:
        one_leaf = msgspec.structs.replace(settings, draft=msgspec.structs.replace(settings.draft, sequences=1))
        model = resolve_model(settings.draft.model)
        require_trials(settings.parts, model, settings.draft.n_gpu_layers, again=True)
        drafter = load_drafter(one_leaf)
        tokens = target_tokens(settings.parts, settings, drafter).at_start()
    except EdgespecError as error:
        yield fault("model", error)
        return
    yield Finding("model", f"loaded, {drafter.vocab_size} tokens of vocabulary")
    yield speed(measured_curve(drafter)[1], busy=busy_because())
    if reached:
        me = identity(settings, store, drafter, tokens, 1)
        yield await handshake(me, gateway.pin, reached)
