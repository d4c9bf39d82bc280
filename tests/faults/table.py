"""The faults: how each is injected, and its bounds. An injection returns after the fault has been healed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edgespec_lab.link_model import LinkModel
from edgespec_lab.rig import RigError
from tests.faults import hostile, outside
from tests.faults.scene import PROMPTS, USUAL, WORKERS, Scene, Stream, at_once
from tools.check.busy import busy

Inject = Callable[..., object]
"""Called with `scene`."""
HOLD_S = 1.0
PATHS = {
    "campus": LinkModel(0.001, 0.0001, bandwidth_bps=1e9),
    "cable": LinkModel(0.024, 0.002, 0.004, 20e6),
    "lte": LinkModel(0.053, 0.010, 0.005, 13.6e6),
    "transatlantic": LinkModel(0.090, 0.002, 0.001, 100e6),
}
"""docs/results/paths.md has the source of each number."""


@dataclass(frozen=True)
class Scenario:
    """One row."""

    name: str
    inject: Inject
    stall_s: float = 5.0
    """Longest time between two chunks of a stream that was running. A link whose worker is silent for 2 s counts as
    late long before; the rest is room for a busy machine."""
    recovery_s: float = 60.0
    """From the repair until both workers are ready and draft. A worker waits a random time before it dials again, at
    first under a second, doubled after each link that lasted under a minute."""
    around: Callable[[Scene], contextlib.AbstractContextManager[None]] = outside.nothing
    """The set-up before the streams begin, which is taken away after the row."""
    ends_streams: bool = False
    """The gateway itself is lost: its streams end with an error; the same requests give the same texts afterwards."""


def signalled(*names: str, sig: signal.Signals, scene: Scene) -> None:
    """Ends these workers, and starts them again."""
    for name in names:
        scene.rig.stop(name, sig)
    time.sleep(HOLD_S)
    for name in names:
        scene.restart(name)


def frozen(*names: str, seconds: float, scene: Scene) -> None:
    """Stops these processes and lets them go on."""
    pids = [scene.rig.pid(name) for name in names]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def path(model: LinkModel, scene: Scene) -> None:
    """Another path for the link, then the usual one."""
    scene.proxy.change(model)
    time.sleep(HOLD_S)
    scene.proxy.change(USUAL)


def held(*directions: Any, seconds: float, scene: Scene) -> None:
    """Nothing is delivered in these directions for some time."""
    scene.proxy.hold(*directions)
    time.sleep(seconds)
    scene.proxy.heal()


def cut(times: int, scene: Scene) -> None:
    """Every connection is aborted, several times."""
    for _ in range(times):
        scene.proxy.cut()
        time.sleep(0.3)


def limited(process: str, kind: int, of: Callable[[int], int], scene: Scene) -> None:
    """A limit of the kernel on a process, then its former one."""
    pid = scene.rig.pid(process)
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (of(pid), before[1]))
    time.sleep(HOLD_S)
    resource.prlimit(pid, kind, before)
    if not scene.rig.runs(process):
        scene.restart(process)


def descriptors(pid: int) -> int:
    """How many a process has open now."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory(pid: int) -> int:
    """Bytes of address space that a process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def starved(*names: str, scene: Scene) -> None:
    """Busy loops on every core beside processes of the lowest priority."""
    tasks = [int(task.name) for name in names for task in Path(f"/proc/{scene.rig.pid(name)}/task").iterdir()]
    with busy(os.cpu_count() or 1):
        for task in tasks:
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, task, 19)
        time.sleep(HOLD_S)
    for task in tasks:
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, task, 0)


def gateway_again(sig: signal.Signals, scene: Scene) -> None:
    """The gateway ends and starts on the same ports."""
    scene.rig.stop("gateway", sig)
    scene.rig.start_gateway()


def commanded(before: list[str], after: list[str], scene: Scene) -> None:
    """An operator's command, and the one that takes it back."""
    scene.rig.gateway_command(*before)
    time.sleep(0.3)
    scene.rig.gateway_command(*after)


def paused(*names: str, scene: Scene) -> None:
    """The admin's pause, and its end."""
    for name in names:
        scene.rig.worker_command("pause", "--json", worker=name)
    for name in names:
        scene.rig.worker_command("resume", "--json", worker=name)


def revoked(scene: Scene) -> None:
    """A worker is revoked, ends, and is paired again."""
    scene.rig.gateway_command("workers", "revoke", "demo-second", "--json")
    scene.rig.stop("second")
    scene.rig.pair("second")
    scene.restart("second")


def replaced(scene: Scene) -> None:
    """The draft model's file becomes another model while a worker runs; the worker starts again with it."""
    content = scene.draft.read_bytes()
    scene.draft.unlink()
    scene.draft.write_bytes(scene.target.read_bytes())
    scene.rig.stop("second", signal.SIGKILL)
    scene.restart("second")
    time.sleep(HOLD_S)
    scene.draft.unlink()
    scene.draft.write_bytes(content)


def another_time(scene: Scene) -> None:
    """A worker starts again with a monotonic clock that is eleven days ahead."""
    scene.rig.stop("second")
    rig = scene.rig
    command = [
        "unshare",
        "--time",
        "--fork",
        "--kill-child",
        "--monotonic",
        "1000000",
        *rig._worker(),
        "run",
        "--always",
    ]
    rig.start("second", [*command, "--config", str(rig._worker_config("second"))])
    rig.wait_linked(60, "second")
    time.sleep(HOLD_S)
    rig.stop("second", signal.SIGKILL)
    scene.restart("second")


def left(count: int, scene: Scene) -> None:
    """Clients that hang up in the middle of their streams."""
    leaving = [Stream(scene, PROMPTS[0], leave_after=5) for _ in range(count)]
    for one in leaving:
        one.start()
    for one in leaving:
        one.join(60)


def slow(pause_s: float, scene: Scene) -> None:
    """A client that reads slowly; what it gets is complete."""
    reader = Stream(scene, PROMPTS[0], pause_s=pause_s)
    reader.start()
    reader.join(60)
    assert reader.complete, f"the slow reader's text differs: {reader.error}"


def crowd(scene: Scene) -> None:
    """More requests at a time than there are slots."""
    texts = at_once(scene, 12)
    assert all(text in scene.expected.values() for text in texts), "a text of the crowd differs"


def garbage(listener: str, scene: Scene) -> None:
    """Connections that send bytes without meaning, some of which end with a reset."""
    for i in range(30):
        with suppress(OSError), socket.create_connection(("127.0.0.1", scene.rig.ready[listener]["port"]), 2) as sock:
            sock.sendall(os.urandom(200) + b"\r\n\r\n")
            if i % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def silent(listener: str, scene: Scene) -> None:
    """Connections that send nothing."""
    port = scene.rig.ready[listener]["port"]
    opened = [socket.create_connection(("127.0.0.1", port), 2) for _ in range(20)]
    time.sleep(HOLD_S)
    for one in opened:
        one.close()


def wrong_key(scene: Scene) -> None:
    """Requests without a valid key."""
    client = scene.client()
    client.key = "es-wrong"
    for _ in range(5):
        with suppress(RigError):
            client.complete(scene.body(PROMPTS[0]))
            raise AssertionError("a wrong key was accepted")


def handed_over(scene: Scene) -> None:
    """Each worker in turn ends while the other is there."""
    for name in WORKERS:
        signalled(name, sig=signal.SIGKILL, scene=scene)
        scene.rig.wait_linked(60, name)


KILL = signal.SIGKILL
TERM = signal.SIGTERM
ONE = WORKERS[:1]
BOTH = WORKERS
GROUP = ["workers", "group", "demo-second"]
Row = Scenario
TABLE = (
    Row("a worker is killed", partial(signalled, *ONE, sig=KILL)),
    Row("both workers are killed", partial(signalled, *BOTH, sig=KILL)),
    Row("a worker is stopped by its admin", partial(signalled, *ONE, sig=TERM)),
    Row("both workers are stopped by their admins", partial(signalled, *BOTH, sig=TERM)),
    Row("each worker is killed in turn", handed_over),
    Row("a worker is frozen for 1 s", partial(frozen, *ONE, seconds=1)),
    Row("both workers are frozen for 1 s", partial(frozen, *BOTH, seconds=1)),
    Row("a worker is frozen for 6 s", partial(frozen, *ONE, seconds=6)),
    Row("the gateway is frozen for 1 s", partial(frozen, "gateway", seconds=1), stall_s=6),
    Row("the gateway is frozen for 4 s", partial(frozen, "gateway", seconds=4), stall_s=9),
    Row("gateway and workers are frozen, as in a suspended laptop", partial(frozen, "gateway", *BOTH, seconds=2), 7),
    Row("the links are cut", partial(cut, 1)),
    Row("the links are cut five times", partial(cut, 5)),
    Row("a partition of 1 s", partial(held, "up", "down", seconds=1)),
    Row("a partition of 6 s", partial(held, "up", "down", seconds=6)),
    Row("half open: frames to the gateway are lost for 2 s", partial(held, "up", seconds=2)),
    Row("half open: frames to the workers are lost for 2 s", partial(held, "down", seconds=2)),
    Row("5 % loss", partial(path, LinkModel(0.02, 0.0, 0.05))),
    Row("30 % loss", partial(path, LinkModel(0.02, 0.0, 0.3))),
    Row("300 ms jitter", partial(path, LinkModel(0.02, 0.3))),
    Row("a round trip of 300 ms", partial(path, LinkModel(0.3))),
    Row("a round trip of 2 s", partial(path, LinkModel(2.0))),
    Row("64 kbit/s", partial(path, LinkModel(0.02, bandwidth_bps=64e3))),
    *(Row(f"the path is {name}", partial(path, model)) for name, model in PATHS.items()),
    Row("the gateway is stopped and starts again", partial(gateway_again, TERM), stall_s=10, recovery_s=100),
    Row("the gateway is killed and starts again", partial(gateway_again, KILL), 60, 100, ends_streams=True),
    Row("a worker is paused and resumed", partial(paused, *ONE)),
    Row("both workers are paused and resumed", partial(paused, *BOTH)),
    Row("a worker leaves its group", partial(commanded, [*GROUP, "others", "--json"], [*GROUP, "default", "--json"])),
    Row("a worker is revoked and paired again", revoked),
    Row("a draft model's file is replaced", replaced),
    Row("a worker's clock is days ahead", another_time),
    Row("the gateway's disk is full", partial(limited, "gateway", resource.RLIMIT_FSIZE, lambda pid: 0)),
    Row("a worker's disk is full", partial(limited, "worker", resource.RLIMIT_FSIZE, lambda pid: 0)),
    Row("the gateway has no descriptor left", partial(limited, "gateway", resource.RLIMIT_NOFILE, descriptors)),
    Row("a worker has no descriptor left", partial(limited, "worker", resource.RLIMIT_NOFILE, descriptors)),
    Row("a worker gets no more memory", partial(limited, "worker", resource.RLIMIT_AS, memory)),
    Row("a worker is starved by other jobs", partial(starved, *ONE)),
    Row("both workers are starved by other jobs", partial(starved, *BOTH)),
    Row("the gateway is starved by other jobs", partial(starved, "gateway"), stall_s=20),
    Row("a client hangs up", partial(left, 1)),
    Row("six clients hang up", partial(left, 6)),
    Row("a slow reader", partial(slow, 0.02)),
    Row("more requests than slots", crowd, stall_s=20),
    Row("garbage on the link port", partial(garbage, "link")),
    Row("garbage on the API's port", partial(garbage, "api")),
    Row("silent connections to the link port", partial(silent, "link")),
    Row("silent connections to the API's port", partial(silent, "api")),
    Row("wrong API keys", wrong_key),
    Row("the gateway's folder of keys is away for 5 s", outside.gateway_keys_away),
    Row("a worker's folder of keys is away, and its link is cut", outside.worker_keys_away),
    Row("the gateway is frozen for 30 s", partial(frozen, "gateway", seconds=30), stall_s=35),
    Row("the gateway's disk has no byte left", outside.disk_full, around=outside.on_a_small_disk),
    Row("the clock is an hour ahead, and an hour behind", outside.clock_steps, 10, around=outside.under_another_clock),
    Row("50 clients read a byte a second", outside.slow_clients, stall_s=20),
    Row("500 TLS connections are held", outside.held_connections, stall_s=10),
    Row("lock and socket are deleted, and a second gateway starts", outside.second_gateway, 10, 100),
    Row("the target's file is deleted, and the gateway restarted", outside.target_deleted, 10, 100),
    Row("a gateway sends an impossible tokenizer", hostile.hostile_tokenizer),
    Row("40 copies of a worker's key link", hostile.copied_key),
)  # fmt: skip
