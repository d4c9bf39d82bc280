"""`edgespec run`: connects the draft model's thread with the link and the control socket on the event loop."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from edgespec import __version__
from edgespec.core.drafting.algorithm2 import DraftRule
from edgespec.core.drafting.best_first import BestFirstRule, Starts
from edgespec.core.drafting.together import DraftCurve
from edgespec.core.errors import (
    KeyStoreError,
    ModelError,
    PairingError,
    RemoteProtocolError,
    TokenizerMismatch,
)
from edgespec.core.protocol.handshake import Notice, Pin
from edgespec.core.protocol.messages import (
    VERSION,
    Books,
    Decline,
    Pause,
    Resume,
    StepTimes,
    ToWorker,
    Tree,
    WorkerTimes,
)
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.worth import WorkerFigures, figures_of
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.step_time import affordable_leaves
from edgespec.shared import control, folders, logs, sdnotify
from edgespec.shared.address import Address, Tunnelled
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateway, PairedGateways
from edgespec.shared.part import guards_of, nearby_of
from edgespec.worker import models
from edgespec.worker.config import DraftSection, WorkerSettings
from edgespec.worker.daemon import Daemon, Outlet, WorkerStats
from edgespec.worker.dial import GatewayAddresses
from edgespec.worker.link import Handler, Link, keep_linked
from edgespec.worker.models import drafting_in, identity, load_drafter, target_tokens
from edgespec.worker.notices import Notices
from edgespec.worker.part import WorkerPart, WorkerProcess
from edgespec.worker.presences import Presences
from edgespec.worker.tokens import RefusedTokens

log = logging.getLogger("edgespec.service")

LOADING = "it loads its draft model"
NO_ADDRESS = (
    "no address of gateway %s is known and nothing searches for it: set `gateway.address` in worker.toml to its address"
)


class Service(Handler):
    """One worker process. Lives on the event loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        load: Callable[[WorkerSettings], Drafter] | None = None,
        parts: Sequence[WorkerPart] = (),
        doing: Callable[[str], None] = log.info,
    ) -> None:
        """Reads the keys and loads the draft model, in seconds to minutes; `load` replaces `load_drafter` in tests;
        `doing` is called with each step.

        Raises PairingError without a paired gateway, KeyStoreError, ModelError.
        """
        self.settings = settings
        self._began = time.monotonic()
        state = folders.state_dir("worker", settings.daemon.state_dir)
        self._gateways = PairedGateways(state / "keys")  # before a folder is made: it may only be away
        self.gateway = paired_gateway(self._gateways)
        store = KeyStore(state)
        draft = settings.draft
        self._load = load or load_drafter
        doing(f"checking and loading the draft model {draft.model}")
        loading = partial(self._load, settings)
        if self._lowered:
            loading = partial(models.run_lowered, loading)
        drafter = loading()

        timer = models.step_timer(parts, settings, drafter)
        curve = timer.known()
        self._rule = draft_rule(draft, curve)
        self._tokens = target_tokens(parts, settings, drafter)
        tokens = self._tokens.at_start()
        leaves = self._rule.sequences
        log.info("draft model loaded; %s, up to %d leaves a step", draft.order, leaves)
        self.identity = identity(settings, store, drafter, tokens, leaves)
        self.daemon = Daemon(
            drafter,
            Starts(self._rule, tokens.make, tokens.rank),
            self._outlet(),
            draft.requests,
            curve=DraftCurve(curve),
            timer=timer,
            load=self._reload,
        )

        self._paused_by_admin: str | None = None
        self._announced: str | None = None
        """The reason of the pause that daemon and gateway have; None: no pause."""
        self.presences = Presences([part.presence(settings, self._on_presence) for part in parts])
        self._link: Link | None = None
        self._figures: WorkerFigures | None = None
        """The gateway's figures of this worker; None before it has sent any."""
        self._notices = Notices()
        self._addresses: GatewayAddresses
        nearby = nearby_of(parts, settings)
        self._finder = nearby.gateway_finder(key_id(self.gateway.key))
        guards = partial(guards_of, parts)
        process = WorkerProcess(settings, state, self._gateway_key, self._linked_at, guards, nearby, self._may_draft)
        self._running = [part.start(process) for part in parts]
        self._loop: asyncio.AbstractEventLoop
        self._failed: asyncio.Future[None]

    @property
    def _lowered(self) -> bool:
        return self.settings.daemon.priority == "idle"

    def _gateway_key(self) -> bytes:
        return self.gateway.key

    def _linked_at(self) -> Address | None:
        if self._link is None:
            return None
        return self._link.address

    async def _ways(self) -> Sequence[Tunnelled]:
        """Those of all parts."""
        ways: list[Tunnelled] = []
        for part in self._running:
            ways += await part.ways()

        return ways

    async def run(self, stop: asyncio.Event) -> None:
        """Drafts until `stop` is set. Raises final errors (revoked, expired, another tokenizer)."""
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        thread = threading.Thread(target=self._draft, name="drafting", daemon=True)
        thread.start()
        try:
            if self._finder is not None:
                await self._finder.start()
            for part in self._running:
                await part.start()
            self.extras = {kind: take for part in self._running for kind, take in part.extras().items()}

            self._addresses = GatewayAddresses(
                self._gateways,
                self.gateway.key,
                self.settings.gateway.address,
                self._finder,
                self._ways,
            )
            if self._finder is None and not await self._addresses.now():
                log.warning(NO_ADDRESS, self.gateway.name)
            present = asyncio.ensure_future(self.presences.run())
            link = asyncio.ensure_future(self._keep_linked())
            stopped = asyncio.ensure_future(stop.wait())
            sdnotify.notify("READY=1", "STATUS=looking for the gateway")

            waits: list[asyncio.Future[Any]] = [link, present, self._failed, stopped]
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            sdnotify.notify("STOPPING=1")
            for wait in waits:
                wait.cancel()
            await asyncio.gather(link, present, return_exceptions=True)  # lets the link send `Bye`
        finally:
            self.daemon.stop()
            for part in self._running:
                await part.close()
            if self._finder is not None:
                await self._finder.close()
            thread.join(5)

        for future in done:
            future.result()

    async def _keep_linked(self) -> None:
        """Links again and again; after a refusal of this worker's tokens in others, if it can draft in them."""
        addresses = self._addresses
        rng = random.SystemRandom()
        while True:
            try:
                await keep_linked(
                    addresses.now,
                    self.identity,
                    self.gateway.pin,
                    self,
                    rng=rng,
                    failed=addresses.failed,
                    noticed=self._notices.add,
                )
            except TokenizerMismatch as error:
                await self._change_tokens(error)

    async def _change_tokens(self, error: TokenizerMismatch) -> None:
        """The gateway has refused the tokens of this worker, which drafts in others from now on if it can.

        Raises TokenizerMismatch if it cannot.
        """
        refused = RefusedTokens(
            error,
            self.gateway,
            self.identity,
            self._addresses.now,
            self._reached,
            self._explain_refusal,
        )
        tokens = await self._tokens.after(refused)
        self.identity = drafting_in(self.identity, tokens)
        self.daemon.starts.make = tokens.make
        self.daemon.starts.rank = tokens.rank

    def _explain_refusal(self, why: str) -> None:
        """Shows why the gateway's target cannot be drafted for; the log has the same sentence once in a row."""
        if why != self._notices.current()["refused"]:
            log.warning("%s", why)
        self._notices.add(Notice("tokenizer", why))

    def _follow(self, pin: Pin) -> None:
        """The gateway has rotated its identity, and has proven the new one."""
        former = key_id(self.gateway.key)
        try:
            self.gateway = self._gateways.rotate(self.gateway.key, pin)  # on the event loop: it is rare
        except KeyStoreError as error:  # the next start follows again
            log.warning("%s", error)
            self.gateway = msgspec.structs.replace(self.gateway, key=pin.gateway_key, spki=pin.spki_hash)

        newer = key_id(pin.gateway_key)
        log.info(
            "gateway %s has rotated its identity: (%s) is now (%s)",
            self.gateway.name,
            former,
            newer,
        )
        self._addresses.key = pin.gateway_key
        if self._finder is not None:
            self._finder.rotated(newer)

    # --- the link's handler ----------------------------------------------------------------------------------------

    def on_up(self, link: Link) -> None:
        self._link = link
        self._notices.linked()
        self._reached(link)
        self.daemon.starts.rule = replace(self._rule, branching=min(link.branching, self._rule.branching))
        self.daemon.writable()

        gateway = f"{self.gateway.name} ({key_id(self.gateway.key)})"
        log.info(
            "linked to gateway %s; this worker's id is %s",
            gateway,
            key_id(self.identity.key.public),
        )
        sdnotify.notify(f"STATUS=linked to {self.gateway.name}")

        # The gateway knows neither the times of steps nor a pause that began before the link.
        if self.daemon.curve is not None:
            link.send(self.daemon.curve.report())
        if self._announced is not None:
            link.send(Pause(self._announced))

    def _reached(self, link: Link) -> None:
        if link.pin.gateway_key != self.gateway.key:
            self._follow(link.pin)
        self._addresses.reached(link.address)

    def on_round_trip(self, rtt_s: float) -> None:
        self.daemon.round_trip(rtt_s)

    def on_message(self, message: ToWorker) -> None:
        """Passes a message of the gateway to the parts and the daemon."""
        self._show_parts(message)
        self.daemon.take(message)

    def on_figures(self, figures: Books | WorkerTimes) -> None:
        match figures:
            case Books():
                self._figures = figures_of(figures)
            case WorkerTimes() if self._figures is not None:
                self._figures = figures_of(self._figures.books, figures)

    def _show_parts(self, message: ToWorker | None) -> None:
        for part in self._running:
            part.on_request(message)

    def on_writable(self) -> None:
        self.daemon.writable()

    def on_down(self, why: str) -> None:
        if self._link is not None:
            self._addresses.reached(self._link.address)
        self._link = None
        self._show_parts(None)
        self.daemon.forget_all()
        sdnotify.notify("STATUS=looking for the gateway")

    # --- from the drafting thread ------------------------------------------------------------------------------------

    def _draft(self) -> None:
        try:
            if self._lowered:
                models.lower_thread()
            self.daemon.run()
        except Exception as error:  # noqa: BLE001  any error that stops drafting ends the service, so that systemd restarts it
            self._soon(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def _soon(self, call: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    def _outlet(self) -> Outlet:
        """Calls of the drafting thread that run on the event loop."""
        return Outlet(
            send=partial(self._soon, self._send),
            broken=partial(self._soon, self._broken),
            loaded=partial(self._soon, self._announce),
        )

    def _send(self, bodies: Sequence[Tree | StepTimes | Decline]) -> None:
        if self._link is not None:
            self._link.send(*bodies)
        else:
            self.daemon.writable()

    def _broken(self, error: RemoteProtocolError) -> None:
        if self._link is not None:
            self._link.end(error)

    def _reload(self) -> Drafter:
        """The model again, on the drafting thread. Raises ModelError where the file was replaced."""
        drafter = self._load(self.settings)
        if drafter.model_digest != self.identity.model_digest:
            raise ModelError("The draft model's file was replaced while the worker ran; restart the worker.")
        return drafter

    # --- pauses: by the admin, or because the owner is present -------------------------------------------------------

    @property
    def paused_because(self) -> str | None:
        """The reason of a pause as the gateway gets it; None: there is no pause."""
        if self._paused_by_admin is not None:
            return self._paused_by_admin

        permission = self.presences.permission
        if not permission.drafting:
            return permission.reason
        if not self.daemon.loaded:
            return LOADING
        return None

    def _may_draft(self) -> bool:
        return self.paused_because is None

    def _on_presence(self) -> None:
        self.daemon.keep_model(self.presences.permission.keeps_model)
        self._announce()

    def _announce(self) -> None:
        """Passes a pause, or its end, to the drafting thread and to the gateway."""
        because = self.paused_because
        before = self._announced
        self._announced = because
        if (because is None) == (before is None):
            return

        self.daemon.pause(because is not None)
        if self._link is None:
            return
        if because is None:
            self._link.send(Resume())
        else:
            self._link.send(Pause(because))

    # --- edgespec status, pause, resume ------------------------------------------------------------------------------

    def commands(self) -> dict[str, control.Handler]:
        """The handlers of the control socket, with those of the parts."""
        handlers: dict[str, control.Handler] = {
            "status": self._status,
            "pause": self._pause,
            "resume": self._resume,
        }
        for part in self._running:
            handlers.update(part.handlers())

        return handlers

    async def _status(self) -> dict[str, object]:
        stats = self.daemon.stats
        return {
            "version": __version__,
            "state": self._state(),
            "uptime_s": round(time.monotonic() - self._began),
            "model": self.daemon.drafter.name,
            "name": self.identity.name,
            "id": key_id(self.identity.key.public),
            "gateway": self.gateway.name,
            **self._link_status(),
            **self._notices.current(),
            "paused": self.paused_because,
            "requests_open": self.daemon.open_requests,
            "requests": stats.requests,
            "steps": stats.steps,
            "passes": self.daemon.drafter.passes,
            "rows": self.daemon.drafter.rows,
            "nodes": stats.nodes,
            "frames": stats.frames,
            "tokens_committed": stats.committed,
            "tokens_matched": stats.matched,
            "books": self._figures and msgspec.structs.asdict(self._figures),
            **self.daemon.timer.status(),
            **_step_times(stats),
            "drafting_s": round(stats.drafting_s, 1),
            "model_loaded": self.daemon.loaded,
            **self.presences.status(),
            "warnings": logs.latest_warnings(),
        }

    def _state(self) -> str:
        if self.paused_because:
            return "paused"
        if self.daemon.open_requests:
            return "drafting"
        return "ready"

    def _link_status(self) -> dict[str, object]:
        """Where the gateway is linked, and through which machine."""
        address = self._linked_at()
        if address is None:
            return {"linked": False, "address": None, "through": None, "rtt_ms": None}

        through = None
        if isinstance(address, Tunnelled):
            through = address.machine
        rtt_ms = round(self.daemon.outlet.rtt_s * 1e3, 1)
        return {"linked": True, "address": str(address), "through": through, "rtt_ms": rtt_ms}

    async def _pause(self, reason: str = "paused by its admin") -> dict[str, object]:
        if self._paused_by_admin is None:
            self._paused_by_admin = reason[:200]
            self._announce()
        return {"paused": self.paused_because}

    async def _resume(self) -> dict[str, object]:
        self._paused_by_admin = None
        self._announce()
        return {"paused": self.paused_because}


def _step_times(stats: WorkerStats) -> dict[str, float | None]:
    """What a step took in the model and besides, on average; None before the first."""
    if not stats.steps:
        return {"step_ms": None, "host_us_per_step": None}

    return {
        "step_ms": round(stats.drafting_s / stats.steps * 1e3, 3),
        "host_us_per_step": round(stats.host_s / stats.steps * 1e6, 1),
    }


def draft_rule(draft: DraftSection, step_s: Mapping[int, float]) -> DraftRule:
    """The configured rule; a value of 0 is chosen from the measured `step_s` (leaves -> s).

    Algorithm 2 always evaluates all its leaves, so their number is limited to the cheap ones; the best-first rule
    chooses it at each step.
    """
    rule: DraftRule = BestFirstRule()
    if draft.order == "algorithm2":
        rule = DraftRule(sequences=affordable_leaves(step_s), theta=draft.theta)

    return replace(
        rule,
        branching=draft.branching or rule.branching,
        sequences=draft.sequences or rule.sequences,
    )


def paired_gateway(gateways: PairedGateways) -> PairedGateway:
    """The gateway to draft for: the one paired last. Raises PairingError: none, or it must not fall back to VERSION."""
    known = gateways.all()
    if not known:
        raise PairingError(
            "This worker is not paired with a gateway; ask its operator for a code and run `edgespec pair`."
        )

    latest = max(known, key=lambda gateway: gateway.paired_at)
    if latest.min_version > VERSION:
        text = f"Gateway {latest.name} was paired at version {latest.min_version} of the protocol"
        raise PairingError(f"{text}, and this program speaks {VERSION}: update it, or pair again.")

    return latest
