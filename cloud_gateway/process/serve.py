"""`cloud-gateway serve`: starts and stops the listeners, models, engine, links and control socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.api import Api, Backend, Limits, make_app
from cloud_gateway.api.listener import CONNECTIONS, ApiListener, ClientTimes, OwnPort, api_bounds, check_free, listen
from cloud_gateway.auth import KeyRing
from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.core.sources.interface import SourceMakers
from cloud_gateway.engine.exchange import Recording
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.queue_work import MakeQueueWork, no_queue_work
from cloud_gateway.links.server import CONNECTIONS as LINK_CONNECTIONS
from cloud_gateway.links.server import Links
from cloud_gateway.part import Figure, Foundation, GatewayPart, LinkIdentity, Operating, Running, Serving, choices_of
from cloud_gateway.process.config import GatewaySettings, is_loopback
from cloud_gateway.process.control import Commands
from cloud_gateway.process.link_port import LinkPort, reachable_host
from cloud_gateway.process.loading import (
    LoadedModels,
    engine_settings,
    load_models,
    measure,
    parameters_of,
    spare_rounds,
    sweep,
)
from cloud_gateway.process.targets import Plan, check_models
from edgespec import __version__
from edgespec.core.errors import ConfigError, EdgespecError, KeyStoreError
from edgespec.shared import folders, logs, sdnotify
from edgespec.shared.acceptor import raise_descriptor_limit, share_descriptors
from edgespec.shared.address import Address
from edgespec.shared.control import ControlServer
from edgespec.shared.fields import pin
from edgespec.shared.files import held, write_private
from edgespec.shared.installed import another
from edgespec.shared.part import guards_of, nearby_of
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.shared.starting import Starting, Stopped, on_stop_signals

log = logging.getLogger("cloud_gateway.process.serve")
GRACE_S = 30.0
"""Time for completions to end after SIGTERM; below the TimeoutStopSec of 60 s of its systemd unit."""
OPEN_API = (
    "`api.host` is %s: API keys and prompts cross the network unencrypted, for everyone on it to read; set it to "
    "127.0.0.1 and put a TLS proxy before it (docs/api.md)"
)


class EngineFailedError(EdgespecError):
    """The engine stopped after repeated failures; the process ends, and systemd starts it again."""


class Gateway:
    """One gateway process, on the event loop; `run` starts it, serves and stops it."""

    def __init__(
        self,
        settings: GatewaySettings,
        starting: Starting,
        ready_file: Path | None = None,
        parts: Sequence[GatewayPart] = (),
    ) -> None:
        """Reads keys and lists, and starts the parts. Raises KeyStoreError, ConfigError."""
        self.settings = settings
        self.starting = starting
        self.parts = parts
        self._ready_file = ready_file
        store = ServerKeyStore(folders.state_dir("gateway", settings.daemon.state_dir))
        self.port = LinkPort(settings.link, store, nearby_of(parts, settings))
        self.keys = KeyRing(store.folder)
        link = LinkIdentity(self.port.name, self.port.tls.spki_hash, self.port.paired)
        foundation = Foundation(settings, self.keys, self.port.key, store.folder.parent, link)
        self.running: list[Running] = [part.start(foundation) for part in parts]
        self._ports = [port for running in self.running for port in running.ports()]
        self.choices = choices_of(parts)
        parameters = parameters_of(parts)
        limits = Limits.of(settings.api, settings.target.slots, self.choices, parameters)
        observers = [observer for running in self.running if (observer := running.observer()) is not None]
        admissions = [admission for running in self.running if (admission := running.admission()) is not None]
        self.api = Api(limits, observers, admissions)
        self.commands = Commands(self.port.paired, self.keys, self.port, self._note_lifted)
        self.models: LoadedModels | None = None
        self._listeners: dict[str, ApiListener] = {}
        self._pages: Mapping[str, str] = {}
        self._shares = connection_shares(self._ports)
        self._guards = guards_of(parts)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
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
        closing.enter_context(held(folders.state_dir("gateway", settings.daemon.state_dir), "gateway"))
        handlers = self.commands.handlers() | {"status": self.status}
        for running in self.running:
            handlers |= running.handlers()
        control = ControlServer(folders.socket_file("gateway", settings.daemon.state_dir), handlers)
        await control.start()
        closing.push_async_callback(control.close)
        self.starting("checking the models")
        plan = self.check()
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)

        check_free(settings.link.host, settings.link.port, "link")
        api = settings.api
        bounds = api_bounds(self._shares["api"])
        times = ClientTimes()
        if not is_loopback(api.host):
            log.warning(OPEN_API, api.host)

        routes = [route for running in self.running for route in running.routes()]
        self._pages = {route.page: route.path for route in routes if route.page}
        app = make_app(self.api, self.keys, routes)
        chat = await listen(app, api.host, api.port, "api", bounds, times, self._guards)
        closing.push_async_callback(chat.close)
        self._listeners["api"] = chat

        for port in self._ports:
            listener = await listen(port.app, port.host, port.number, port.name, port.bounds, times, self._guards)
            closing.push_async_callback(listener.close)
            self._listeners[port.name] = listener
        return plan

    def check(self) -> Plan:
        """Raises ModelError, TokenizerMismatch, ConfigError before anything is loaded."""
        return check_models(self.settings)

    def load(self, plan: Plan) -> LoadedModels:
        """In a thread."""
        return load_models(self.settings, plan, self.starting)

    async def make_engine(self, models: LoadedModels, links: Links, closing: AsyncExitStack) -> Engine:
        """The engine, which runs until `closing` is left."""
        serving = Serving(models.served, models.text, self.commands.worker_rows)
        recorders = self._recordings(serving)
        makers = self._makers(serving, models.makers)
        default_sources = self._default_sources()

        self.starting("timing passes of the target")
        curve = await asyncio.to_thread(measure, models.target)
        engine = Engine(
            models.target,
            models.local,
            engine_settings(self.settings, self.choices, makers, default_sources),
            links,
            recorders=recorders,
            curve=curve,
            on_failure=self._engine_failed,
            on_idle=models.idle,
            queue_work=self._queue_work(serving),
        )

        links.inbox = engine
        engine.start()
        closing.push_async_callback(asyncio.to_thread, engine.stop)
        return engine

    def _makers(self, serving: Serving, loaded: SourceMakers) -> SourceMakers:
        """Makers of sources of candidates, of the core and of the parts. `loaded`: those that came with the models."""
        makers = {**MAKERS, **loaded}
        for running in self.running:
            makers.update(running.sources(serving))
        return makers

    def _default_sources(self) -> list[str]:
        """Sources that parts give each completion."""
        return [name for running in self.running for name in running.default_sources()]

    def _queue_work(self, serving: Serving) -> MakeQueueWork:
        """That of the first part which has some."""
        for running in self.running:
            work = running.queue_work(serving)
            if work is not None:
                return work
        return no_queue_work

    def _recordings(self, serving: Serving) -> list[Recording]:
        """The parts' listeners."""
        recordings = [running.recording(serving) for running in self.running]
        return [recording for recording in recordings if recording is not None]

    async def _start(self, models: LoadedModels, closing: AsyncExitStack) -> None:
        links = self.port.make_links(
            models.tokenizer_digest,
            models.served.vocab_size,
            self._shares["link"],
            offer=models.offer,
            refused=self._note_refused,
            judges=[part.judge(self.settings) for part in self.parts if part.judge is not None],
            quarantined=self._note_quarantine,
            guards=self._guards,
        )
        for running in self.running:
            closing.push_async_callback(running.close)

        self.commands.engine = engine = await self.make_engine(models, links, closing)
        await self.port.open(links, closing)
        links.start_s = self.starting.seconds
        self.models = models

        operating = Operating(engine, links.workers, self.port.quarantined, links.traffic, self._figures)
        for running in self.running:
            running.operates(operating)

        opened = [running.link_opened(self.port.local) for running in self.running]
        groups = frozenset[str]().union(*opened)
        self.api.serve(Backend(engine, models.text, models.served, models.grammars, groups, models.refuses))

    def _figures(self) -> list[Figure]:
        return [figure for running in self.running for figure in running.figures()]

    def _note_refused(self, reason: str) -> None:
        for running in self.running:
            running.frame_refused(reason)

    def _note_quarantine(self, worker: str, name: str, why: str) -> None:
        for running in self.running:
            running.worker_changed("quarantined", worker, name, why)

    def _note_lifted(self, worker: str, name: str) -> None:
        for running in self.running:
            running.worker_changed("lifted", worker, name, "")

    def _announce(self) -> None:
        """Reports readiness on standard output, in the ready file and to systemd."""
        assert self.models is not None
        model = self.models.served.id
        found = self.addresses()
        log.info("ready after %.1f s", self.starting.seconds)
        api = Address(reachable_host(self.settings.api.host), self._listeners["api"].port)
        print(f"API      http://{api}/v1 serves {model}")
        print(f"workers  {found['link']}", flush=True)

        for port in self._ports:
            print(f"{port.name:8} {found[port.name]}{port.path}", flush=True)
        for name in self._pages:
            print(f"{name:8} {found[name]}", flush=True)
        if self._ready_file is not None:
            ports = {name: {"port": listener.port, "url": listener.url} for name, listener in self._listeners.items()}
            link = {"port": self.port.number, "url": found["link"]}
            _write_ready(self._ready_file, {"pid": os.getpid(), "model": model, "link": link, **ports})
        sdnotify.notify("READY=1", f"STATUS=serving {model}")

    async def status(self) -> dict[str, object]:
        """The state and totals that `cloud-gateway status` shows."""
        engine = self.commands.engine
        links = self.port.links
        found: dict[str, object] = {
            "version": __version__,
            "pid": os.getpid(),
            "state": self.api.state,
            "uptime_s": round(self.starting.seconds),
            **self.addresses(),
        }
        if self.models is None or engine is None or links is None:
            return found | self.starting.status()

        linked = links.workers()
        stats = engine.stats
        return found | {
            "model": self.models.served.id,
            "policy": self.settings.policy.name,
            "workers_linked": len(linked),
            "workers_paused": sum(worker.paused for worker in linked),
            "workers_quarantined": self.port.quarantined(),
            "problems": [*links.problems(), *self._key_problems()],
            "helps": self._helps(),
            "requests_active": engine.active,
            "requests_queued": engine.queued,
            "requests": stats.requests,
            "tokens": stats.tokens,
            "rounds": stats.rounds,
            "drafted": dict(stats.ended.drafted),
            "accepted": dict(stats.ended.accepted),
            "local_draft_passes": stats.local_passes,
            "frames": dict(stats.frames.counts),
            "refused": dict(links.rejected),
        }

    def _helps(self) -> dict[str, object]:
        """Whether each linked worker helps, by its name; empty while the list of workers cannot be read."""
        try:
            rows = self.commands.worker_rows()
        except KeyStoreError:
            return {}
        return {str(row["name"]): row["helps"] for row in rows if row["linked"]}

    def _key_problems(self) -> list[str]:
        try:
            self.keys.all()
        except KeyStoreError as damaged:
            return [f"The list of API keys cannot be read, so every request gets 503: {damaged}"]
        return []

    def addresses(self) -> dict[str, str]:
        """URLs of the ports that are open."""
        found = {name: listener.url for name, listener in self._listeners.items()}
        if self.port.links is not None:
            found["link"] = self.port.url
        if "api" in self._listeners:
            found |= {name: f"{self._listeners['api'].url}{path}" for name, path in self._pages.items()}
        return found

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


def run(settings: GatewaySettings, starting: Starting, ready_file: Path | None, parts: Sequence[GatewayPart]) -> None:
    """Serves until it is stopped by a signal."""
    pin(settings.daemon.cpu)
    made = gateway_class(settings.target.engine)
    asyncio.run(made(settings, starting, ready_file, parts).run())


def gateway_class(engine: str) -> type[Gateway]:
    """That of another distribution if vLLM is the engine. Raises ConfigError if it is not installed."""
    if not engine.startswith("vllm"):
        return Gateway
    found: type[Gateway] = another("edgespec_vllm.gateway", "`target.engine`").VllmGateway
    return found


def connection_shares(ports: Sequence[OwnPort] = ()) -> dict[str, int]:
    """Connections of each port, limited so that file descriptors are left for everything else.

    `ports`: those of parts, whose bounds stay as they are.
    """
    wanted = {"api": CONNECTIONS, "link": LINK_CONNECTIONS}
    wanted.update((port.name, port.bounds.total) for port in ports)
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


def _write_ready(path: Path, value: object) -> None:
    """Readable by the user who started the gateway. Raises ConfigError."""
    try:
        write_private(path, msgspec.json.encode(value) + b"\n")
    except KeyStoreError as error:
        raise ConfigError(f"The ready file cannot be written: {error}") from error
