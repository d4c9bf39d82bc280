"""`cloud-gateway serve`: starts and stops the listeners, models, engine, links and control socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cloud_gateway.api import Api, Backend, Limits, make_app
from cloud_gateway.api.connection import Times
from cloud_gateway.api.listener import CONNECTIONS, METRICS_LIMITS, Listener, api_admission, check_free, listen
from cloud_gateway.auth import KeyRing
from cloud_gateway.core.limits.conduct import Conduct
from cloud_gateway.engine.exchange import Recording
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.port import CONNECTIONS as LINK_CONNECTIONS
from cloud_gateway.links.port import LinkLimits, link_admission
from cloud_gateway.links.server import Links
from cloud_gateway.metrics import Metrics, metrics_app
from cloud_gateway.process import spans
from cloud_gateway.process.audit import AuditLog
from cloud_gateway.process.collector import spare_rounds, sweep
from cloud_gateway.process.config import GatewaySettings, is_loopback
from cloud_gateway.process.control import Commands
from cloud_gateway.process.loading import Models, engine_settings, load_models
from cloud_gateway.process.measure import measure
from cloud_gateway.process.own_worker import OwnWorker
from cloud_gateway.process.recorder import Recorder, RecorderSettings
from cloud_gateway.process.targets import Plan, check_models
from edgespec.core.admission import share_descriptors
from edgespec.core.errors import AddressError, ConfigError, EdgespecError
from edgespec.core.pairing.groups import OWN_GROUP
from edgespec.core.protocol.handshake import GatewayIdentity
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared import folders, logs, sdnotify
from edgespec.shared.acceptor import raise_descriptor_limit
from edgespec.shared.address import Address
from edgespec.shared.advertise import Advertiser
from edgespec.shared.control import ControlServer
from edgespec.shared.fields import machine_name, pin
from edgespec.shared.installed import another
from edgespec.shared.keystore import KeyStore
from edgespec.shared.pairing_listener import PairingListener
from edgespec.shared.starting import Starting, Stopped, on_stop_signals

if TYPE_CHECKING:
    from cloud_gateway.ui.pages import Pages

log = logging.getLogger("cloud_gateway.process.serve")
GRACE_S = 30.0
"""Time for completions to end after SIGTERM; below TimeoutStopSec in systemd/cloud-gateway.service."""
METRICS_HOST = "127.0.0.1"
"""Figures about other people's requests do not leave this machine."""
MAX_TRACE_BYTES = 16 * 2**20
"""Of one request, before compression (to about a fifth): about 16,000 rounds."""
KEPT_TRACES = 1000
AUDIT_FILE_BYTES = 4 * 2**20
"""About 11,000 entries; a larger file would take longer to search and to drop."""

OPEN_API = (
    "`api.host` is %s: API keys and prompts cross the network unencrypted, for everyone on it to read; set it to "
    "127.0.0.1 and put a TLS proxy before it (docs/api.md)"
)


class EngineFailedError(EdgespecError):
    """The engine stopped after repeated failures; the process ends, and systemd starts it again."""


class Gateway:
    """One gateway process, on the event loop; `run` starts it, serves and stops it."""

    refuses: Mapping[str, str] = {}
    """Parameters that its engine cannot serve, each with the reason."""

    def __init__(self, settings: GatewaySettings, starting: Starting, ready_file: Path | None = None) -> None:
        """Reads keys and lists. Raises KeyStoreError, ConfigError."""
        self.settings, self.starting, self._ready_file = settings, starting, ready_file
        store = KeyStore(folders.state_dir("gateway", settings.daemon.state_dir))
        store.note_credentials()
        self.identity, self.tls = store.identity(), store.tls_identity()
        self.name = machine_name(settings.link.name)
        self.paired = PairedWorkers(store.folder)
        self.keys = KeyRing(store.folder)
        self.metrics = Metrics()
        self.api = Api(Limits.of(settings.api, settings.limits, settings.target.slots), self.metrics)
        self.recorder = _recorder(settings, self.identity)
        self.audit_folder = folders.audit_dir(settings.daemon.state_dir)
        self.audit = _audit(settings, self.audit_folder)
        self.pages = _pages(settings, self.keys)
        self.desk = PairingListener(self.identity, self.name, self.tls.spki_hash, self.paired)
        self.own_worker = self._own_worker(store.folder.parent / "own-worker")
        self.models: Models | None = None
        self.engine: Engine | None = None
        self.links: Links | None = None
        self.advertiser: Advertiser | None = None
        self._listeners: dict[str, Listener] = {}
        self.link_port = 0
        self._shares = connection_shares()
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._failed = False

    async def run(self) -> None:
        """Serves until SIGTERM, SIGINT or SIGHUP.

        Raises AddressError, ModelError, TokenizerMismatch, EngineFailedError.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(logs.loop_failed)
        on_stop_signals(self._asked_to_stop)
        async with AsyncExitStack() as closing:
            plan = await self._open(closing)
            try:
                models = await self.starting.finished(partial(self.load, plan), self._stop)
                logs.serving()
                spare_rounds()
                await self._start(models, closing)
            except Stopped:
                return
            self._announce()
            chores = [asyncio.ensure_future(chore) for chore in (sdnotify.keep_alive(), sweep())]
            await self._stop.wait()
            for chore in chores:
                chore.cancel()
            sdnotify.notify("STOPPING=1")
            await self._drain()
        if self._failed:
            raise EngineFailedError("The engine gave up after repeated failures; its log says which.")

    # --- start -----------------------------------------------------------------------------------------------------

    async def _open(self, closing: AsyncExitStack) -> Plan:
        """Opens what should fail before minutes of loading: addresses in use, a second gateway on the same state."""
        settings = self.settings
        control = ControlServer(folders.socket_file("gateway", settings.daemon.state_dir), Commands(self).handlers())
        await control.start()
        closing.push_async_callback(control.close)
        self.starting("checking the models")
        plan = self.check()
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
        check_free(settings.link.host, settings.link.port, "link")
        api, metrics = settings.api, settings.metrics
        admission, times = api_admission(self._shares["api"]), Times()
        if not is_loopback(api.host):
            log.warning(OPEN_API, api.host)
        app = make_app(self.api, self.keys, self.pages.routes() if self.pages else ())
        chat = await listen(app, api.host, api.port, "api", admission, times)
        closing.push_async_callback(chat.close)
        app = metrics_app(self.metrics)
        figures = await listen(app, METRICS_HOST, metrics.port, "metrics", METRICS_LIMITS, times)
        closing.push_async_callback(figures.close)
        self._listeners = {"api": chat, "metrics": figures}
        return plan

    def check(self) -> Plan:
        """Raises ModelError, TokenizerMismatch, ConfigError before anything is loaded."""
        return check_models(self.settings)

    def load(self, plan: Plan) -> Models:
        """In a thread."""
        return load_models(self.settings, plan, self.starting)

    async def make_engine(self, models: Models, links: Links, closing: AsyncExitStack) -> Engine:
        """The engine, which runs until `closing` is left."""
        recorder: Recording | None = self.recorder
        if (provider := spans.provider()) is not None:
            recorder = spans.Spans(provider, models.served.id, recorder)
        if self.pages is not None:
            recorder = self.pages.show(models.text, Commands(self).worker_rows, recorder)
        self.starting("timing passes of the target")
        curve = await asyncio.to_thread(measure, models.target)
        engine = links.inbox = Engine(
            models.target, models.local, engine_settings(self.settings), links, recorder=recorder, curve=curve,
            heads=models.heads, audit=self.audit, on_failure=self._engine_failed, on_idle=models.idle,
        )  # fmt: skip
        engine.start()
        closing.push_async_callback(asyncio.to_thread, engine.stop)
        return engine

    def _own_worker(self, folder: Path) -> OwnWorker | None:
        draft = self.settings.local_draft
        if draft.mode != "async-local":
            return None
        worker = OwnWorker(draft, folder, self.identity, self.name, self.tls.spki_hash)
        worker.pair(self.paired)
        return worker

    async def _start(self, models: Models, closing: AsyncExitStack) -> None:
        settings = self.settings
        digests = self.tls.spki_hash, models.tokenizer_digest
        me = GatewayIdentity(self.identity, self.name, *digests, tokenizer_file=models.tokenizer_file)
        links = Links(
            me,
            models.served.vocab_size,
            self.paired,
            self.metrics.rejected,
            pair=self.desk.handle,
            limits=LinkLimits(link_admission(self._shares["link"])),
            conduct=Conduct(settings.link.quarantine_keys),
            quarantined=self._note_quarantine,
        )
        if self.audit is not None:
            closing.push_async_callback(asyncio.to_thread, self.audit.close)
        if self.recorder is not None:
            closing.push_async_callback(asyncio.to_thread, self.recorder.close)
        engine = await self.make_engine(models, links, closing)
        try:
            self.link_port = await links.start(settings.link.host, settings.link.port, self.tls.context())
        except AddressError as error:
            raise AddressError(f"{error} Change `link.port` in the configuration.") from error
        closing.push_async_callback(links.stop)
        links.start_s = self.starting.seconds
        if settings.link.mdns:
            where = settings.link.host, self.link_port
            advertiser = self.advertiser = Advertiser(self.name, self.identity.public, self.tls.spki_hash, *where)
            advertiser.start()
            closing.push_async_callback(advertiser.close)
        self.models, self.engine, self.links = models, engine, links
        self.metrics.watch(engine, links.workers, self.paired.quarantined)
        own = await self._start_own_worker(closing)
        self.api.serve(Backend(engine, models.text, models.served, models.grammars, own, self.refuses))

    def _note_quarantine(self, worker: str, name: str, why: str) -> None:
        if self.audit is not None:
            self.audit.worker("quarantined", worker, name, why)

    async def _start_own_worker(self, closing: AsyncExitStack) -> frozenset[str]:
        """Starts it if one is configured; returns the groups that every request may use because of it."""
        if self.own_worker is None:
            return frozenset()
        host = self.settings.link.host
        self.own_worker.start(Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), self.link_port))  # noqa: S104
        closing.push_async_callback(self.own_worker.close)
        return frozenset({OWN_GROUP})

    def _announce(self) -> None:
        """Reports readiness on standard output, in the ready file and to systemd."""
        assert self.models is not None
        model, found = self.models.served.id, self.addresses()
        log.info("ready after %.1f s", self.starting.seconds)
        api = Address(reachable_host(self.settings.api.host), self._listeners["api"].port)
        print(f"API      http://{api}/v1 serves {model}")
        print(f"workers  {found['link']}")
        print(f"metrics  {found['metrics']}/metrics", flush=True)
        if self._ready_file is not None:
            ports = {name: {"port": listener.port, "url": listener.url} for name, listener in self._listeners.items()}
            link = {"port": self.link_port, "url": found["link"]}
            _write_atomically(self._ready_file, {"pid": os.getpid(), "model": model, "link": link, **ports})
        sdnotify.notify("READY=1", f"STATUS=serving {model}")

    def addresses(self) -> dict[str, str]:
        found = {name: listener.url for name, listener in self._listeners.items()}
        return found | {"link": self.worker_address()} if self.links is not None else found

    def worker_address(self) -> str:
        return f"wss://{Address(reachable_host(self.settings.link.host), self.link_port)}"

    # --- stop ------------------------------------------------------------------------------------------------------

    def _asked_to_stop(self, sig: signal.Signals) -> None:
        log.info("%s: stopping", sig.name)
        if not self._stop.is_set():
            self._stop.set()
        elif sig is not signal.SIGHUP:  # a terminal that is closed may send it twice
            self._hurry.set()

    def _engine_failed(self) -> None:
        self._failed = True
        self._stop.set()
        self._hurry.set()

    async def _drain(self) -> None:
        """Waits for completions to end; a second signal, or an engine that failed, ends the wait."""
        log.info("stopping: completions may end within %.0f s, a second signal cuts them off", GRACE_S)
        draining = asyncio.ensure_future(self.api.drain(GRACE_S))
        hurrying = asyncio.ensure_future(self._hurry.wait())
        tasks: list[asyncio.Future[Any]] = [draining, hurrying]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.api.drain(0)
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)


def run(settings: GatewaySettings, starting: Starting, ready_file: Path | None) -> None:
    """Serves until it is stopped by a signal."""
    pin(settings.daemon.cpu)
    made = gateway_class(settings.target.engine)
    asyncio.run(made(settings, starting, ready_file).run())


def gateway_class(engine: str) -> type[Gateway]:
    """That of another distribution if vLLM is the engine. Raises ConfigError if it is not installed."""
    if not engine.startswith("vllm"):
        return Gateway
    found: type[Gateway] = another("edgespec_vllm.gateway", "`target.engine`").VllmGateway
    return found


def connection_shares() -> dict[str, int]:
    """Connections of each port, limited so that file descriptors are left for everything else."""
    wanted = {"api": CONNECTIONS, "link": LINK_CONNECTIONS, "metrics": METRICS_LIMITS.total}
    available = raise_descriptor_limit()
    shares = share_descriptors(wanted, available)
    if shares != wanted:
        log.warning(
            "%d file descriptors (LimitNOFILE) leave the API %d connections and the link port %d",
            available,
            shares["api"],
            shares["link"],
        )
    return shares


def _recorder(settings: GatewaySettings, key: SigningKey) -> Recorder | None:
    """The flight recorder, if a folder for traces is configured."""
    traces = settings.traces
    if not traces.folder:
        return None
    folder = folders.expand(traces.folder)
    return Recorder(RecorderSettings(folder, traces.salt, MAX_TRACE_BYTES, KEPT_TRACES), key)


def _pages(settings: GatewaySettings, keys: KeyRing) -> Pages | None:
    """The live picture, which takes its time to import."""
    if not settings.api.ui:
        return None
    from cloud_gateway.ui.pages import Pages

    return Pages(keys)


def _audit(settings: GatewaySettings, folder: Path) -> AuditLog | None:
    audit = settings.audit
    return AuditLog(folder, AUDIT_FILE_BYTES, audit.keep) if audit.keep else None


def reachable_host(configured: str) -> str:
    """The configured host, or for a wildcard this machine's address on its route out."""
    if configured not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return configured
    return _outgoing_address(socket.AF_INET6 if configured == "::" else socket.AF_INET) or socket.gethostname()


def _outgoing_address(family: socket.AddressFamily) -> str | None:
    """This machine's source address for packets to other networks; nothing is sent."""
    target = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # documentation addresses, RFC 3849 and 5737
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def _write_atomically(path: Path, value: object) -> None:
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.touch(0o600)  # ports and process id are for the user who started the gateway
        temporary.write_bytes(msgspec.json.encode(value) + b"\n")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"The ready file {path} cannot be written ({error.strerror or error}).") from error
