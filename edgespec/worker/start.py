"""`edgespec run` from its first line to its end: the control socket answers before the draft model is loaded."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from edgespec import __version__
from edgespec.core.errors import AddressError
from edgespec.shared import control, folders, logs, sdnotify
from edgespec.shared.fields import pin
from edgespec.shared.starting import Starting, Stopped, on_stop_signals
from edgespec.worker.config import WorkerSettings
from edgespec.worker.part import WorkerPart

if TYPE_CHECKING:
    from edgespec.worker.service import Service

log = logging.getLogger("edgespec.service")

READY_S = 5.0
"""Seconds after which systemd is notified that the worker is up, if it still loads its model then. A start that fails
earlier fails for `systemctl start`; a busy machine, which may need minutes, is no reason to end it."""
WATCH_S = 1.0
"""Between two states of `edgespec status --watch`."""
Make = Callable[[WorkerSettings, Starting], "Service"]


def make_service(settings: WorkerSettings, starting: Starting, parts: Sequence[WorkerPart] = ()) -> Service:
    """The worker with its model loaded, and with these parts. Runs in a thread; raises as `Service` does."""
    starting("loading libraries")
    from edgespec.worker.service import Service  # llama.cpp

    return Service(settings, parts=parts, doing=starting)


async def run(
    settings: WorkerSettings,
    input_fd: int | None = None,
    make: Make = make_service,
    handlers_of_parts: Sequence[str] = (),
) -> None:
    """Drafts until SIGTERM, SIGINT or SIGHUP, or until the input ends where one is given; nothing is read from it.

    `handlers_of_parts`: names of the handlers that the parts of the service will have. Raises final errors (revoked,
    expired, another tokenizer), and what `make` raises, which runs in a thread.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.set_exception_handler(logs.loop_failed)
    starting = Starting(f"edgespec {__version__}")

    def stopped(sig: signal.Signals) -> None:
        log.info("%s: stopping", sig.name)
        stop.set()

    on_stop_signals(stopped)
    if input_fd is not None:
        loop.add_reader(input_fd, stop.set)
    pin(settings.daemon.cpu)  # here: threads that are started later have what this one has
    path = folders.socket_file("worker", settings.daemon.state_dir)
    handlers = while_starting(starting, handlers_of_parts)
    handlers["watch"] = partial(watching, handlers)
    commands = control.ControlServer(path, handlers)
    await commands.start()
    up = asyncio.ensure_future(_say_ready(starting))
    try:
        service = await starting.finished(lambda: make(settings, starting), stop)
        handlers.update(service.commands())
        logs.serving()
        log.info("ready after %.1f s", starting.seconds)
        await service.run(stop)
    except Stopped:
        return
    finally:
        up.cancel()
        await commands.close()


async def _say_ready(starting: Starting) -> None:
    """Notifies systemd after READY_S that the worker is up, and its watchdog from now on that the event loop runs."""
    alive = asyncio.ensure_future(sdnotify.keep_alive())
    try:
        await asyncio.sleep(READY_S - starting.seconds)
        sdnotify.notify("READY=1")
        await alive
    finally:
        alive.cancel()


async def watching(handlers: Mapping[str, control.Handler]) -> AsyncIterator[Any]:
    """The status again and again, from whatever handler reports it then."""
    while True:
        yield await handlers["status"]()  # type: ignore[misc]
        await asyncio.sleep(WATCH_S)


def while_starting(starting: Starting, handlers_of_parts: Sequence[str]) -> dict[str, control.Handler]:
    async def status() -> object:
        return {"version": __version__, **starting.status()}

    async def later(**params: object) -> object:
        raise AddressError(f"The worker is still starting ({starting.status()['doing']}); try again shortly.")

    handlers: dict[str, control.Handler] = dict.fromkeys(("pause", "resume", *handlers_of_parts), later)
    return handlers | {"status": status}
