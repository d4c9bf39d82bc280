"""What services on the system's D-Bus say: login sessions (logind) and metered connections (NetworkManager)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from edgespec.parts.owner_signs.sources import Source, Unavailable

if TYPE_CHECKING:
    from dbus_fast.aio import MessageBus
    from dbus_fast.message import Message

REFRESH_S = 5.0
"""After which the state is asked for without a signal; a service that was restarted sends none."""
CALL_S = 2.0
"""Time for one call; both services answer from memory."""
PROPERTIES = "org.freedesktop.DBus.Properties"
MAX_SESSIONS = 64
"""Sessions that are asked for. More are not looked at: the machine is a server with other signs of its users."""


class BusSource(Source):
    """A value that a service on the bus knows: read at each signal of the service, and every `REFRESH_S`."""

    period_s = 0.1
    service: str

    def __init__(self, address: str | None = None) -> None:
        """`address`: of another bus than the system's, for tests."""
        self._address = address
        self._bus: MessageBus | None = None
        self._value = 0.0
        self._failed: str | None = None
        self._news = asyncio.Event()
        self._owner: str | None = None
        """The service's unique name on the bus, as the sender of its latest reply."""
        self._task: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Connects, subscribes to the service's signals and asks once."""
        try:
            from dbus_fast import BusType
            from dbus_fast.aio import MessageBus
        except ImportError:
            raise Unavailable("the package dbus-fast is not installed") from None
        try:
            bus = MessageBus(self._address, bus_type=BusType.SYSTEM)
            self._bus = await asyncio.wait_for(bus.connect(), CALL_S)
        except Exception as error:  # noqa: BLE001  the library raises whatever its transport does
            raise Unavailable(f"the system's D-Bus cannot be reached ({type(error).__name__})") from None
        self._bus.add_message_handler(self._on_message)
        rule = f"type='signal',sender='{self.service}'"
        await self._call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch", "s", rule)
        self._value = await self._ask()
        self._failed = None
        self._task = asyncio.ensure_future(self._follow())

    def read(self, now: float) -> float:
        if self._failed is not None:
            raise Unavailable(self._failed)
        return self._value

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._bus is not None:
            self._bus.disconnect()
            self._bus = None

    async def _ask(self) -> float:
        """The value now. Raises Unavailable."""
        raise NotImplementedError

    async def _follow(self) -> None:
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), REFRESH_S)
                self._news.clear()
                self._value = await self._ask()
        except Unavailable as why:
            self._failed = str(why)

    def _on_message(self, message: Message) -> None:
        """Any user may send signals to this connection; only those of the service cause calls."""
        if message.message_type.name == "SIGNAL" and message.sender == self._owner:
            self._news.set()

    async def _call(self, service: str, path: str, interface: str, member: str, signature: str, *body: Any) -> Any:
        """The first value of the reply. Raises Unavailable."""
        from dbus_fast.message import Message

        assert self._bus is not None
        message = Message(service, path, interface, member, signature=signature, body=list(body))
        try:
            reply = await asyncio.wait_for(self._bus.call(message), CALL_S)
        except Exception as error:  # noqa: BLE001  as above
            raise Unavailable(f"{service} does not answer ({type(error).__name__})") from None
        if reply is None or reply.message_type.name == "ERROR":
            raise Unavailable(f"{service} does not answer ({reply.error_name if reply else 'no reply'})")

        if service == self.service:
            self._owner = reply.sender
        if reply.body:
            return reply.body[0]
        return None

    async def _property(self, path: str, interface: str, name: str) -> Any:
        return (await self._call(self.service, path, PROPERTIES, "Get", "ss", interface, name)).value


class Sessions(BusSource):
    """Login sessions of persons at this machine that are active, not idle and not locked (org.freedesktop.login1(5)).

    Terminals over SSH are seen by `Terminals`, and their owner counts while he types.
    """

    name = "sessions"
    service = "org.freedesktop.login1"

    async def _ask(self) -> float:
        manager = "/org/freedesktop/login1", f"{self.service}.Manager"
        sessions = await self._call(self.service, *manager, "ListSessions", "")
        present = 0
        for *_, path in sessions[:MAX_SESSIONS]:
            with contextlib.suppress(Unavailable):  # it ended since the list was made
                present += await self._is_present(path)

        return float(present)

    async def _is_present(self, path: str) -> bool:
        call = self.service, path, PROPERTIES, "GetAll", "s", f"{self.service}.Session"
        session = {name: variant.value for name, variant in (await self._call(*call)).items()}
        person = session.get("Class") == "user" and not session.get("Remote")
        away = session.get("IdleHint") or session.get("LockedHint")
        return bool(person and session.get("Active") and not away)


class Metered(BusSource):
    """Whether NetworkManager calls the connection metered, or takes it for so (NMMetered: 1 and 3)."""

    name = "metered"
    service = "org.freedesktop.NetworkManager"

    async def _ask(self) -> float:
        metered = await self._property("/org/freedesktop/NetworkManager", self.service, "Metered")
        return float(metered in (1, 3))
