"""The gateway's end of all links: a WebSocket server over TLS on which paired workers authenticate and send trees.

A hostile worker can end only its own link: each connection has its own session, task and counters, and every refusal
adds one log line and one count. Everything runs on the event loop; only `linked` may be called from other threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl as ssl_module
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from websockets.asyncio.server import ServerConnection

from cloud_gateway.core.limits.probation import CONTEST_PROBATION_S, Contest, Probation
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.engine.exchange import Inbox, WorkerGone, WorkerReady
from cloud_gateway.engine.pool import Workers
from cloud_gateway.links.judge import Judge
from cloud_gateway.links.link import Link, TokenizerOffer, WorkerInfo
from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.errors import (
    AddressError,
    KeyStoreError,
    PairingError,
    RemoteProtocolError,
)
from edgespec.core.protocol.gateway_session import GatewaySession, standing_error
from edgespec.core.protocol.handshake import (
    NO_TOKENIZER,
    NONCE_BYTES,
    CloseCode,
    GatewayIdentity,
)
from edgespec.core.protocol.inflow import InflowLimits
from edgespec.core.protocol.messages import Bye, Close, Hello, Open, ToWorker
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.redial import restart_reason
from edgespec.core.protocol.session import DEFAULT_TIMERS, Timers
from edgespec.core.protocol.worth import WorkerFigures
from edgespec.shared.address import BOOKS, FEATURES, LINK_PATH, PAIR_PATH, TIMES, requests_of
from edgespec.shared.guards import PLAIN, Guards, PortBounds
from edgespec.shared.limited_port import LimitedConnection, LimitedPort
from edgespec.shared.log_text import LimitedLog
from edgespec.shared.wire import WEBSOCKET_OPTIONS, Wire

log = logging.getLogger("cloud_gateway.links.server")

FAULTS = frozenset(
    "bad-signature fault flood malformed oversize padding pong sequence session slow unexpected websocket shape-nodes "
    "shape-columns shape-parent shape-duplicate-sibling shape-vocabulary shape-depth shape-ids shape-entropy "
    "shape-cost shape-steps".split()
)
"""Ends of a link that are the worker's own doing."""
CONNECTIONS = 1024
"""Of the link port at once, fewer if the limit of open files does not suffice: more than one gateway can use."""
UNPROVEN = 64
"""Those whose key is not proven yet. At the limit a new one replaces the oldest, never a worker's link."""
WORKER_FRAMES_PER_S = 200.0
"""Of one worker, which sends at most `TREES_PER_S` frames of trees."""
WORKER_BYTES_PER_S = 5e5
WORKER_BYTES_BURST = 1 << 18
"""180 frames a second with trees for eight requests are 370 KB. A node of 8 bytes costs 1.7 µs until it is
merged, so that a flood of full frames takes a tenth of one core."""
WORKER_INFLOW = InflowLimits(
    frames_per_s=WORKER_FRAMES_PER_S,
    bytes_per_s=WORKER_BYTES_PER_S,
    bytes_burst=WORKER_BYTES_BURST,
)


def link_bounds(total: int) -> PortBounds:
    """Those of the link port, whose share of the descriptors are `total`."""
    return PortBounds.within(total, UNPROVEN)


class Links(Workers):
    def __init__(
        self,
        me: GatewayIdentity,
        vocab_size: int,
        paired: PairedWorkers,
        refused: Callable[[str], None],
        *,
        pair: Callable[[ServerConnection], Awaitable[None]] | None = None,
        timers: Timers = DEFAULT_TIMERS,
        bounds: PortBounds,
        guards: Guards = PLAIN,
        inflow: InflowLimits = WORKER_INFLOW,
        offer: TokenizerOffer | None = None,
        judges: Sequence[Judge] = (),
        quarantined: Callable[[str, str, str], None] = lambda worker, name, why: None,
    ) -> None:
        """`vocab_size`: of the target; `refused` is called with each reason; `pair` serves `/pair`, if given.

        `offer`: serves workers without a tokenizer, if `me.sends_tokenizer`.

        `quarantined` is called with id, name and reason of each worker that one of the `judges` has quarantined.
        """
        self._me = me
        self.vocab_size = vocab_size
        self.paired = paired
        self._refused = refused
        self.inbox: Inbox
        """Where events go; set before `start`, since the engine is made with these links."""
        self._pair = pair
        self._timers = timers
        self._offer = offer
        self.start_s = 0.0
        """How long this gateway took to start, and so how long a restart of it takes."""
        self.rejected = Counter[str]()
        self.traffic = Counter[str]()
        """How often each reason for a refusal occurred, and bytes `sent` and `received` on all links."""
        self._lines = LimitedLog(log)
        self._workers: dict[str, WorkerInfo] = {}
        """By id; changed on the event loop."""
        self._figures: dict[str, WorkerFigures] = {}
        """Those that each worker was sent last, by its id; only of paired workers, which bounds it."""
        self._probation = Probation()
        self._contest = Contest()
        self._judges = judges
        self._quarantined = quarantined
        paths = [LINK_PATH]
        if pair is not None:
            paths.append(PAIR_PATH)
        self._server = LimitedPort(
            "link port",
            self._serve,
            paths,
            bounds,
            inflow,
            WEBSOCKET_OPTIONS,
            timers.handshake_s,
            log,
            self._count,
            guards=guards,
        )

    # --- the server ----------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, ssl: ssl_module.SSLContext) -> int:
        """Serves links; returns the port, which matters for port 0. Raises AddressError if it cannot be bound."""
        try:
            return await self._server.start(host, port, ssl)
        except OSError as error:
            raise AddressError(f"Cannot listen on {host} port {port}: {error.strerror or error}.") from None

    async def stop(self) -> None:
        """Sends `Bye` to every worker, says in the close when it is back if it is started again, and stops serving."""
        for worker in self.workers():
            self._hang_up(worker, Bye("stopping"), why="stopping")

        await self._server.stop(CloseCode.RESTART, restart_reason(self.start_s))

    async def _serve(self, ws: LimitedConnection) -> None:
        """Serves one connection to its end, and ends it after any error."""
        try:
            if self._pair is not None and ws.request is not None and ws.request.path == PAIR_PATH:
                await self._pair(ws)
                if ws.flooded is not None:
                    self._reject(ws.peer, ws.flooded.reason, str(ws.flooded))
            else:
                await self._serve_link(ws)
        except KeyStoreError as damaged:  # the worker is to try again: whether it is paired cannot be said
            self._unreadable(damaged)
            await ws.close(CloseCode.OURS, "internal")
        except Exception as error:  # noqa: BLE001  a fault of ours must end this connection only
            text = f"{ws.peer}: connection ended by a fault of this gateway"
            self._lines.line(logging.ERROR, ("fault", type(error)), text, error)
            await ws.close(CloseCode.OURS, "internal")

    async def _serve_link(self, ws: LimitedConnection) -> None:
        now = asyncio.get_running_loop().time()
        nonce = os.urandom(NONCE_BYTES)
        session = GatewaySession(self._me, self.paired.lookup, nonce, now, self._timers, self._rotate)
        link = Link(ws, session, self.inbox, self.vocab_size, self._linked, self._recheck)
        wire = Wire(ws, session, link.take)
        wire.traffic = self.traffic
        link.wire = wire

        code = int(CloseCode.OURS)
        why = "internal"
        try:
            why = await wire.run()
            code = CloseCode.NORMAL
        except RemoteProtocolError as error:
            code = error.close_code
            why = error.reason
            self._reject(link.who, error.reason, str(error), is_worker=link.worker is not None)
        finally:
            self._down(link.worker, why)

        await wire.close(code, why)

    # --- for the engine ------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerInfo]:
        """All linked workers, the paused ones included."""
        return list(self._workers.values())

    def linked(self) -> Mapping[str, LinkedWorker]:
        """The linked workers by id; may be called on any thread, which should read a copy."""
        return self._workers

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        info = self._workers.get(worker)
        if info is None or info.wire.over:
            return

        for body in bodies:
            if isinstance(body, Open):
                info.scopes[body.request] = body.cache_scope
            elif isinstance(body, Close):
                info.scopes.pop(body.request, None)

        info.wire.send(*bodies)

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        info = self._workers.get(worker)
        if info is not None:
            info.blamed_for = info.scopes.get(request, b"")
            info.wire.end(error)

    def audited(self, worker: str, key: str, claimed: float, accepted: int) -> None:
        now = asyncio.get_running_loop().time()
        for judge in self._judges:
            self._quarantine(worker, judge.drafted(worker, key, claimed, accepted, now))

    def account(self, worker: str, figures: WorkerFigures) -> None:
        self._figures[worker] = figures
        info = self._workers.get(worker)
        if info is None or BOOKS not in info.features or info.wire.over:
            return

        info.wire.send(figures.books)
        if TIMES in info.features:
            info.wire.send(figures.times)

    def note(self, worker: str, reason: str, text: str) -> None:
        self._reject(self._shown(worker), reason, text, is_worker=True)

    def _shown(self, worker: str) -> str:
        """A worker for logs: by its name and id if it is linked, otherwise by its id."""
        return str(self._workers.get(worker, f"worker ({worker})"))

    def diverged(self, worker: str) -> None:
        """The time until its next frame is no measure of its step time."""
        info = self._workers.get(worker)
        if info is not None:
            info.step.broken()

    def regroup(self, worker_key: bytes, groups: frozenset[str]) -> WorkerInfo | None:
        """Replaces a worker's groups; returns the worker if it is linked."""
        info = self._workers.get(key_id(worker_key))
        if info is not None:
            info.groups = groups
        return info

    def revoke(self, worker_key: bytes) -> None:
        """Ends the link of a key that was just revoked; the caller has updated the list."""
        info = self._workers.get(key_id(worker_key))
        if info is not None:
            error = RemoteProtocolError("revoked", "its key was revoked", close_code=CloseCode.REVOKED)
            self._hang_up(info, Bye("revoked"), error)

    def _quarantine(self, worker: str, why: str | None) -> None:
        """Quarantines a worker for this reason, if there is one: stored first, so that its next handshake fails."""
        if why is None:
            return

        for judge in self._judges:
            judge.forget(worker)
        info = self._workers.get(worker)
        try:
            name = self.paired.quarantine(worker, why)  # on the event loop: rare, and no handshake may come before it
        except (KeyStoreError, PairingError) as error:
            log.error("worker (%s) cannot be quarantined (%s): %s", worker, why, error)
            return

        log.warning(
            "worker %s (%s) is quarantined: %s; `cloud-gateway workers release` ends it",
            name,
            worker,
            why,
        )
        self._quarantined(worker, name, why)
        if info is not None:
            ended = RemoteProtocolError("quarantined", why, close_code=CloseCode.QUARANTINED)
            self._hang_up(info, Bye("quarantined"), ended)

    # --- for the links -------------------------------------------------------------------------------------------

    def _linked(self, link: Link) -> None:
        """The handshake succeeded: serves a download, or makes the link a worker's."""
        hello = link.session.hello
        assert hello is not None
        if not link.ws.proven():
            raise RemoteProtocolError("busy", "no place for another worker is left", close_code=CloseCode.SLOW)

        if hello.tokenizer_digest == NO_TOKENIZER:
            assert self._offer is not None, "the handshake refuses it"
            link.download = self._offer.begin(key_id(hello.worker_key), link.wire)
            return

        worker = self._worker_of(link, hello)
        link.worker = worker
        self._recheck(worker)
        former = self._workers.get(worker.id)
        if former is not None:
            self._take_over(former, worker)
        self._begin_probation(worker)
        self._workers[worker.id] = worker

        text = f"{worker} linked from {worker.address}, round trip {worker.rtt_s * 1000:.1f} ms"
        self._lines.line(logging.INFO, ("up", worker.id), text)
        if worker.id in self._figures:
            self.account(worker.id, self._figures[worker.id])
        self.inbox.post(WorkerReady(worker.id))
        asyncio.get_running_loop().run_in_executor(None, self._note_seen, hello.worker_key)

    def _worker_of(self, link: Link, hello: Hello) -> WorkerInfo:
        """The worker of a link whose handshake succeeded, as this gateway's list and its own messages describe it."""
        features: list[str] = []
        if link.ws.request is not None:
            features = link.ws.request.headers.get_all(FEATURES)

        worker = WorkerInfo(
            id=key_id(hello.worker_key),
            name=self.paired.name_of(hello.worker_key),
            session=link.session.session,
            address=link.ws.peer,
            hello=hello,
            groups=self.paired.groups_of(hello.worker_key),
            requests=requests_of(features),
            wire=link.wire,
            features=features,
        )
        worker.sampled(link.first_rtt_s)
        return worker

    def _take_over(self, former: WorkerInfo, newer: WorkerInfo) -> None:
        """Ends the former link of a key, and counts from how many addresses its links come."""
        text = f"a newer session of the same key came from {newer.address}"
        error = RemoteProtocolError("superseded", text, close_code=CloseCode.SUPERSEDED)
        self._hang_up(former, Bye("superseded"), error)

        now = asyncio.get_running_loop().time()
        self._contest.taken_over(newer.id, newer.address.removeprefix("peer "), now)
        if self._contest.addresses(newer.id, now):
            self._lines.warning(("contested", newer.id), self._contested(newer.id, str(newer), now))

    def _contested(self, worker: str, shown: str, now: float) -> str:
        """What is wrong with the key of this worker, whose fault it is and what to do; `shown`: its name and id."""
        hosts = ", ".join(self._contest.addresses(worker, now)[:4])
        return (
            f"{shown}: several processes link with its key, from {hosts}, and end each other's links. Its state folder "
            "was copied, for example with the image of a machine, or it runs twice. It gets requests again "
            f"{CONTEST_PROBATION_S:.0f} s after only one of them links: stop the others, or remove the folder `keys` "
            "from their state folders and pair each again (`cloud-gateway pair`)."
        )

    def problems(self) -> list[str]:
        """What the operator has to put right, a sentence or more each: a list that cannot be read, copied keys."""
        now = asyncio.get_running_loop().time()
        problems = [self._contested(worker, self._shown(worker), now) for worker in self._contest.contested(now)]
        try:
            self.paired.all()
        except KeyStoreError as damaged:
            problems.append(f"The list of workers cannot be read, so no worker can link: {damaged}")

        return problems

    def _unreadable(self, damaged: KeyStoreError) -> None:
        self._lines.line(logging.ERROR, "list", f"the standing of workers cannot be read: {damaged}")

    def _rotate(self, old: bytes, new: bytes) -> None:
        """Stores a worker's new key, on the event loop, so that no handshake comes between; ends the old one's link."""
        self.paired.rotate(old, new)
        former = key_id(old)
        newer = key_id(new)
        for judge in self._judges:
            judge.renamed(former, newer)
        log.info(
            "worker %s has rotated its key: (%s) is now (%s)",
            self.paired.name_of(new),
            former,
            newer,
        )

        info = self._workers.get(former)
        if info is not None:
            error = RemoteProtocolError("superseded", "its key was rotated", close_code=CloseCode.SUPERSEDED)
            self._hang_up(info, Bye("superseded"), error)
        self._probation.renamed(former, newer)
        self._contest.renamed(former, newer)

    def _recheck(self, worker: WorkerInfo) -> None:
        """Once a second: ends the link of a worker that has expired, or that another process revoked."""
        key = worker.hello.worker_key
        try:
            error = standing_error(self.paired.lookup(key), key)
        except KeyStoreError as damaged:  # no reason to end a link that was accepted
            self._unreadable(damaged)
            return

        if error is not None:
            self._hang_up(worker, Bye(error.reason), error)

    def _note_seen(self, key: bytes) -> None:
        try:
            self.paired.seen(key)
        except KeyStoreError as error:  # only the last-seen date is lost
            log.warning("%s", error)

    def _down(self, worker: WorkerInfo | None, why: str) -> None:
        """Removes a link from the table before its socket is closed; does nothing the second time."""
        if worker is None or self._workers.get(worker.id) is not worker:
            return

        del self._workers[worker.id]
        if worker.probation_ends is not None:
            worker.probation_ends.cancel()  # it would hold the connection's buffers for up to ten minutes

        now = asyncio.get_running_loop().time()
        if why != "superseded":
            self._probation.ended(worker.id, now, by_its_fault=why in FAULTS)
        self._lines.line(logging.INFO, ("down", worker.id), f"{worker} is gone: {why}")
        self.inbox.post(WorkerGone(worker.id, why))

        if why in FAULTS:
            for judge in self._judges:
                self._quarantine(worker.id, judge.fault(worker.id, why, worker.blamed_for, now))

    def _begin_probation(self, worker: WorkerInfo) -> None:
        """A worker whose links keep ending gets no requests at first: each end stalls those that it drafts for."""
        loop = asyncio.get_running_loop()
        seconds = self._probation.length_s(worker.id, loop.time())
        worker.probation_because = "on probation, its links kept ending"
        if self._contest.addresses(worker.id, loop.time()):
            seconds = max(seconds, CONTEST_PROBATION_S)
            worker.probation_because = "several processes link with its key"
        if not seconds:
            return

        worker.probation_ends = loop.call_later(seconds, self._end_probation, worker)
        worker.pause(worker.paused_because)
        text = f"{worker} gets no requests for {seconds:.0f} s: {worker.probation_because}"
        self._lines.line(logging.WARNING, ("probation", worker.id), text)

    def _end_probation(self, worker: WorkerInfo) -> None:
        worker.probation_ends = None
        worker.pause(worker.paused_because)
        if not worker.paused:
            self.inbox.post(WorkerReady(worker.id))

    def _hang_up(
        self,
        worker: WorkerInfo,
        bye: Bye,
        error: RemoteProtocolError | None = None,
        why: str = "",
    ) -> None:
        """Ends a link after a last message, by this error or for this reason."""
        if not worker.wire.over:
            worker.wire.send(bye)
        worker.wire.end(error, why)

        if error is not None:
            why = error.reason
        self._down(worker, why)

    def _reject(
        self,
        who: str,
        reason: str,
        text: str,
        *,
        is_worker: bool = False,
    ) -> None:
        """`text` holds no token and no part of a prompt; unproven peers share one line a minute for each reason."""
        source = ""
        if is_worker:
            source = who
        self._lines.warning((source, reason), f"{who} refused: {reason}: {text}")
        self._count(reason)

    def _count(self, reason: str) -> None:
        self.rejected[reason] += 1
        self._refused(reason)
