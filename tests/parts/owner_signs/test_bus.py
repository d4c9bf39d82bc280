"""logind and NetworkManager over a real private D-Bus, with services that a test plays."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from edgespec.parts.owner_signs.bus import Metered, Sessions
from edgespec.parts.owner_signs.sources import Unavailable
from tests.support.programs import require
from tests.support.until import until

LOGIND = "org.freedesktop.login1"
NETWORK = "org.freedesktop.NetworkManager"
CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy></busconfig>"""
AT_THE_DESK = {"Class": "user", "Remote": False, "Active": True, "IdleHint": False, "LockedHint": False}


@dataclass
class Services:
    """The two services: what they answer is `sessions` and `metered`."""

    bus: MessageBus
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    metered: int = 0
    listed: int = 0
    """How often the sessions were asked for."""

    def answer(self, message: Message) -> Message | bool:
        if message.message_type is not MessageType.METHOD_CALL:
            return False
        if message.member == "ListSessions":
            self.listed += 1
            listed = [[str(i), 1000, "u", "seat0", path] for i, path in enumerate(self.sessions)]
            return Message.new_method_return(message, "a(susso)", [listed])
        if message.member == "Get" and message.body == [NETWORK, "Metered"]:
            return Message.new_method_return(message, "v", [Variant("u", self.metered)])
        if message.member == "GetAll" and message.path in self.sessions:
            values = self.sessions[message.path].items()
            found = {name: Variant("b" if isinstance(value, bool) else "s", value) for name, value in values}
            return Message.new_method_return(message, "a{sv}", [found])
        return Message.new_error(message, "org.freedesktop.DBus.Error.UnknownObject", "no such object")

    def set(self, path: str, **values: Any) -> None:
        """Changes a session and sends the signal that logind sends."""
        self.sessions[path] = AT_THE_DESK | self.sessions.get(path, {}) | values
        body = [f"{LOGIND}.Session", {}, list(values)]
        signal = Message.new_signal(path, "org.freedesktop.DBus.Properties", "PropertiesChanged", "sa{sv}as", body)
        self.bus.send(signal)


@dataclass
class Bus:
    address: str
    daemon: asyncio.subprocess.Process


@pytest.fixture
async def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    program = require("dbus-daemon")
    (tmp_path / "bus.conf").write_text(CONFIG.format(path=tmp_path / "bus"))
    monkeypatch.setattr("edgespec.parts.owner_signs.bus.CALL_S", 20.0)
    daemon = await asyncio.create_subprocess_exec(
        program, f"--config-file={tmp_path}/bus.conf", "--nofork", "--print-address=1", stdout=subprocess.PIPE
    )
    assert daemon.stdout is not None
    async with asyncio.timeout(20):
        address = (await daemon.stdout.readline()).decode().strip()  # printed once it listens
    yield Bus(address, daemon)
    if daemon.returncode is None:
        daemon.terminate()
    await daemon.wait()


@pytest.fixture
async def services(bus: Bus) -> AsyncIterator[Services]:
    connected = await MessageBus(bus.address).connect()
    played = Services(connected)
    connected.add_message_handler(played.answer)
    for name in (LOGIND, NETWORK):
        await connected.request_name(name)
    yield played
    connected.disconnect()


DESK = "/org/freedesktop/login1/session/_31"


async def test_a_login_counts_at_its_signal(bus: Bus, services: Services) -> None:
    source = Sessions(bus.address)
    await source.open()
    assert source.read(0.0) == 0
    services.set(DESK)
    await until(lambda: source.read(0.0) == 1)  # well before the next refresh
    for away in ({"IdleHint": True}, {"LockedHint": True}, {"Active": False}, {"Remote": True}, {"Class": "greeter"}):
        services.set(DESK, **away)
        await until(lambda: source.read(0.0) == 0)
        services.set(DESK, **{name: AT_THE_DESK[name] for name in away})
        await until(lambda: source.read(0.0) == 1)
    await source.close()


@pytest.mark.claim("signals-of-other-senders-than-the-service-cause-no-call")
async def test_signals_of_other_senders_than_the_service_cause_no_call(bus: Bus, services: Services) -> None:
    source = Sessions(bus.address)
    await source.open()
    other = await MessageBus(bus.address).connect()
    asked = services.listed
    assert source._bus is not None
    for member in ("PropertiesChanged", "NameAcquired"):
        signal = Message.new_signal(DESK, "org.freedesktop.DBus.Properties", member)
        signal.destination = source._bus.unique_name
        other.send(signal)
    seen = Message("org.freedesktop.DBus", "/", "org.freedesktop.DBus", "GetId")
    await other.call(seen)  # the daemon has passed the signals on
    await source._bus.call(seen)  # and the worker has read them
    await asyncio.sleep(0.1)
    assert services.listed == asked
    services.set(DESK)
    await until(lambda: source.read(0.0) == 1)
    other.disconnect()
    await source.close()


@pytest.mark.parametrize(("metered", "counts"), [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)])
async def test_a_metered_network_counts_also_where_it_is_estimated(
    bus: Bus, services: Services, metered: int, counts: int
) -> None:
    services.metered = metered
    source = Metered(bus.address)
    await source.open()
    assert source.read(0.0) == counts
    await source.close()


async def test_a_bus_without_the_service_is_said(bus: Bus) -> None:
    source = Metered(bus.address)
    with pytest.raises(Unavailable, match="org.freedesktop.NetworkManager does not answer .*ServiceUnknown"):
        await source.open()
    await source.close()


async def test_a_bus_that_ends_is_said_and_one_that_is_not_there(bus: Bus, services: Services, tmp_path: Path) -> None:
    source = Sessions(bus.address)
    await source.open()
    services.set(DESK)
    bus.daemon.terminate()
    await bus.daemon.wait()

    def off() -> bool:
        try:
            source.read(0.0)
        except Unavailable:
            return True
        return False

    await until(off, timeout_s=20)
    await source.close()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await Sessions(f"unix:path={tmp_path}/none").open()
