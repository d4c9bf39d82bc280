"""Faults of what surrounds the processes: folders, disks, clocks, and crowds of connections.

Each injection returns after the fault was healed. What has to stand before the streams begin, such as a small disk
below the gateway's state, is a context manager around the whole row (`Scenario.around`).
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from edgespec.shared.tls import client_context
from edgespec_lab.rig import RigError
from tests.faults.scene import PROMPTS, Scene
from tests.support.part_ports import PART_PORTS

AWAY_S = 5.0
"""A backup that is restored, or a disk that is mounted again."""
SMALL_DISK_BYTES = 512 * 1024
CLOCK_STEP_S = 3600
SLOW_CLIENTS = 50
HELD_CONNECTIONS = 500
UNTIL_HEALTHY_S = 100.0


@contextlib.contextmanager
def nothing(scene: Scene) -> Iterator[None]:
    """The set-up around most rows."""
    yield


def until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Waits for a condition. Raises AssertionError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.1)


# --- folders -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def moved_away(folder: Path) -> Iterator[None]:
    away = folder.with_name(f"{folder.name}.away")
    folder.rename(away)
    try:
        yield
    finally:
        assert not folder.exists(), f"a new {folder.name} is in the way of the one that returns"
        away.rename(folder)


def gateway_keys_away(scene: Scene) -> None:
    """Links stay and requests get 503 while the gateway's folder of keys is away; nobody is unpaired."""
    back_at = time.monotonic() + AWAY_S
    with moved_away(scene.rig.folder / "gateway" / "keys"):
        while time.monotonic() < back_at:
            assert scene.linked() == len(scene.workers), "a link ended while the list of workers was away"
            sentence = refusal(scene)
            assert "503" in sentence and "keys_unreadable" in sentence, f"a valid key got: {sentence}"
            time.sleep(0.2)


def refusal(scene: Scene) -> str:
    """Why a request with a valid key is refused; empty if it is not."""
    try:
        scene.answer(PROMPTS[0])
    except RigError as error:
        return str(error)
    return ""


def worker_keys_away(scene: Scene) -> None:
    """A worker whose folder of keys is away links again by what it has read before."""
    with moved_away(scene.rig.folder / "worker" / "keys"):
        scene.proxy.cut()
        time.sleep(AWAY_S)
        until(lambda: scene.linked() == len(scene.workers), 30, "linked without its folder of keys")
    assert scene.rig.runs("worker"), "the worker ended"


def second_gateway(scene: Scene) -> None:
    """One on the same state folder, after lock file and control socket were deleted; then the first is restarted."""
    rig = scene.rig
    state = rig.folder / "gateway"
    for name in ("gateway.sock", "gateway.sock.lock"):
        (state / name).unlink()
    others = {"api.port": 0, "link.port": 0, **PART_PORTS}
    config = rig._write("second-gateway.toml", rig._gateway_config() | others)
    command = [*rig._gateway(), "serve", "--config", str(config)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=rig.environment)
    except subprocess.TimeoutExpired:
        raise AssertionError("a second gateway runs beside the first one") from None
    assert done.returncode == 71, f"a second gateway ended with {done.returncode}: {done.stderr[-300:]}"
    assert "running already on the state folder" in done.stderr
    rig.stop("gateway", signal.SIGTERM)
    rig.start_gateway()


def target_deleted(scene: Scene) -> None:
    """The gateway serves on; a restart ends with one sentence; with the file back it starts again."""
    content = scene.target.read_bytes()
    scene.target.unlink()
    try:
        assert scene.answer(PROMPTS[0]) == scene.expected[PROMPTS[0]], "a text differs without the target's file"
        scene.rig.stop("gateway", signal.SIGTERM)
        with contextlib.suppress(RigError):
            scene.rig.start_gateway()
            raise AssertionError("the gateway started without its target")
        last = scene.rig.log("gateway").splitlines()[-1]
        scene.rig.stop("gateway")
        assert scene.rig.ended["gateway"] == 66 and scene.target.name in last, f"the restart ended with: {last}"
    finally:
        scene.target.write_bytes(content)
    scene.rig.start_gateway()


# --- the disk ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_a_small_disk(scene: Scene) -> Iterator[None]:
    """The gateway's state is on a file system of its own of half a megabyte (tmpfs, which needs root)."""
    state = scene.rig.folder / "gateway"
    kept = state.with_name("gateway.kept")
    scene.rig.stop("gateway")
    state.rename(kept)
    state.mkdir(mode=0o700)
    size = f"size={SMALL_DISK_BYTES},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "edgespec-faults", str(state)], check=True)
    try:
        shutil.copytree(kept, state, dirs_exist_ok=True)
        scene.rig.start_gateway()
        until(scene.healthy, UNTIL_HEALTHY_S, "healthy on a small disk")
        yield
    finally:
        scene.rig.stop("gateway")
        subprocess.run(["umount", str(state)], check=True)
        state.rmdir()
        kept.rename(state)
    scene.rig.start_gateway()
    until(scene.healthy, UNTIL_HEALTHY_S, "healthy on its own disk again")


def disk_full(scene: Scene) -> None:
    """No byte is left for the audit log and the lists; requests go on, and a command says what is wrong."""
    filler = scene.rig.folder / "gateway" / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))
    try:
        assert_fails_with("the disk is full", scene, "keys", "create", "--name", "late", "--json")
        until(partial(entries_are_lost, scene), 60, "entries of the audit log are lost")
    finally:
        filler.unlink()
    scene.rig.gateway_command("keys", "create", "--name", "after", "--json")


def entries_are_lost(scene: Scene) -> bool:
    """Asks for another completion, whose entries may still fit into the last block of the audit log's file."""
    assert scene.answer(PROMPTS[0], policy="wanspec") == scene.expected[PROMPTS[0]], "a text on a full disk differs"
    return "the audit log cannot be written" in scene.rig.log("gateway")


def assert_fails_with(sentence: str, scene: Scene, *arguments: str) -> None:
    """Raises AssertionError unless this command of the gateway fails with such a sentence."""
    try:
        scene.rig.gateway_command(*arguments)
    except RigError as error:
        assert sentence in str(error), f"the command failed with: {error}"
        return
    raise AssertionError(f"`{' '.join(arguments)}` did not fail")


# --- the clock ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def under_another_clock(scene: Scene) -> Iterator[None]:
    """Gateway and workers have a wall clock that can be set; the monotonic clock is the machine's.

    `clock.c` is preloaded. libfaketime 0.9.10 was not kept: with it `time.sleep` fails in CPython 3.11 (EINVAL).
    """
    library = scene.rig.folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)

    before = dict(scene.rig.environment)
    scene.rig.environment |= {"LD_PRELOAD": str(library), "EDGESPEC_CLOCK": str(clock_file(scene))}
    set_clock(scene, 0)
    try:
        restart_all(scene)
        yield
    finally:
        scene.rig.environment = before
    restart_all(scene)


def clock_file(scene: Scene) -> Path:
    return scene.rig.folder / "clock"


def set_clock(scene: Scene, ahead_s: int) -> None:
    """Sets the clocks of all processes at once: the file is written in place, which they have mapped."""
    clock_file(scene).touch()
    with clock_file(scene).open("r+b") as file:
        file.write(ahead_s.to_bytes(8, sys.byteorder, signed=True))


def restart_all(scene: Scene) -> None:
    for name in scene.workers:
        scene.rig.stop(name)
    scene.rig.stop("gateway")
    scene.rig.start_gateway()
    for name in scene.workers:
        scene.restart(name)
    until(scene.healthy, UNTIL_HEALTHY_S, "healthy after a restart of all")


def clock_steps(scene: Scene) -> None:
    """An hour forward, an hour behind, and back; the audit log shows that the gateway's clock has followed."""
    for ahead_s in (CLOCK_STEP_S, -CLOCK_STEP_S, 0):
        set_clock(scene, ahead_s)
        time.sleep(1.5)
        assert scene.answer(PROMPTS[0], policy="wanspec") == scene.expected[PROMPTS[0]], "a text differs"
        until(lambda shift=ahead_s: abs(audited_ahead_s(scene) - shift) < 60, 20, f"a clock {ahead_s} s ahead")


def audited_ahead_s(scene: Scene) -> float:
    """How far the latest entry of the gateway's audit log is ahead of this machine's clock, in seconds."""
    folder = scene.rig.folder / "gateway" / "audit"
    newest = max(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    return float(msgspec.json.decode(newest.read_bytes().splitlines()[-1])["time"]) - time.time()


# --- crowds ------------------------------------------------------------------------------------------------------


def slow_clients(scene: Scene) -> None:
    """Streams of another API key that are read a byte a second; other clients are served meanwhile."""
    rig = scene.rig
    key = rig._new_key("slow")
    body = scene.body(PROMPTS[0]) | {"model": rig.ready["model"], "max_tokens": 32, "stream": True}
    data = msgspec.json.encode(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    request = f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    opened = [connected(rig.ready["api"]["port"], request) for _ in range(SLOW_CLIENTS)]
    stop = threading.Event()
    received = [0]
    reading = threading.Thread(target=read_slowly, args=(opened, stop, received), daemon=True)
    reading.start()
    try:
        for prompt in PROMPTS * 2:
            assert scene.answer(prompt, policy="wanspec") == scene.expected[prompt], (
                "a text differs beside slow clients"
            )
        until(lambda: received[0] >= SLOW_CLIENTS, 20, "a byte for each slow client")
    finally:
        stop.set()
        reading.join()
        for connection in opened:
            connection.close()


def connected(port: int, request: bytes) -> socket.socket:
    """A connection with the smallest buffer that the kernel gives, on which a request was sent."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", port))
    connection.sendall(request)
    connection.setblocking(False)
    return connection


def read_slowly(connections: list[socket.socket], stop: threading.Event, received: list[int]) -> None:
    """A byte a second of each; `received` counts them."""
    while not stop.wait(1.0):
        for connection in connections:
            with contextlib.suppress(OSError):
                received[0] += len(connection.recv(1))


def held_connections(scene: Scene) -> None:
    """TLS connections to the link port that say nothing, from 32 addresses; a worker that was cut off links beside."""
    context = client_context()
    port = scene.rig.link_port
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as ends:
        for number in range(HELD_CONNECTIONS):
            with contextlib.suppress(OSError):
                source = f"127.0.1.{number % 32 + 1}", 0
                plain = ends.enter_context(socket.create_connection(("127.0.0.1", port), 5, source))
                opened.append(ends.enter_context(context.wrap_socket(plain)))
            if number == HELD_CONNECTIONS // 2:
                scene.proxy.cut()
        assert len(opened) >= 64, f"only {len(opened)} connections were made"
        until(lambda: scene.linked() == len(scene.workers), 60, "linked beside held connections")
