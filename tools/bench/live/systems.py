"""The programs that are compared, each held to its cores: our gateway with its worker, one without drafts, and peers.

All stay loaded through a run, since arms take turns on every prompt. Ours and the peers' are asked through the same
streaming chat API by the same client, greedily, without their prompt caches.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError
from edgespec.shared.procstat import task_stat
from edgespec_lab.rig import Processes, Rig, free_port, machine_time_s
from edgespec_lab.rig.chat import ChatClient, Prompt, greedy
from edgespec_lab.rig.neighbour import Neighbour
from tools.bench.live.arms import DRAFT, WIDE, Arm
from tools.bench.live.report import Answer, Batch, read

LOAD_S = 180.0
PEER_BODY = {"cache_prompt": False}
WARM_TOKENS = 24
ALONE: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"local_draft.model": "", "policy.name": "adaptive", "policy.sources": ["lookup"]},
    WIDE: {"target.threads": 2, "local_draft.threads": 2},
}
"""Gateways of arms, without a worker: one whose only candidates are what prompt and completion hold; one
with a local draft on both cores."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What every arm shares."""

    engine: str
    target: Path
    """Our target."""
    peer_target: Path
    """The GGUF file of the same model."""
    draft: Path
    rtt_ms: float
    slots: int
    """Completions at once."""
    context: int
    """Tokens of each completion with its prompt."""
    neighbour: bool
    llama_server: Path | None

    def gateway_options(self) -> dict[str, Any]:
        """One thread for the core that each model has; nothing is remembered from one request to the next."""
        return {
            "target.threads": 1, "local_draft.threads": 1, "target.slots": self.slots,
            "target.context": 256 * -(-self.context // 256),
            "api.prefix_cache": False,
        }  # fmt: skip

    def peer_command(self, arm: Arm, port: int) -> list[str]:
        """llama-server on this arm's cores."""
        threads = str(arm.cores)
        spec = [str(self.draft) if part == DRAFT else part for part in arm.spec]
        drafting = ["--threads-draft", threads, "--threads-batch-draft", threads] if DRAFT in arm.spec else []
        return [
            str(self.llama_server), "--model", str(self.peer_target), "--host", "127.0.0.1", "--port", str(port),
            "--threads", threads, "--threads-batch", threads, "--parallel", str(self.slots),
            "--ctx-size", str(self.slots * self.context), "--no-cache-prompt", "--cache-ram", "0",
            "--threads-http", str(self.slots + 2), *spec, *drafting,
        ]  # fmt: skip


@dataclass(slots=True)
class Systems:
    """Started programs, by name, and how to ask them."""

    scene: Scene
    folder: Path
    cores: Sequence[int]
    """Of the machine: the first for target models, the second for drafts."""
    clients: dict[str, ChatClient] = field(default_factory=dict)
    rigs: list[Rig] = field(default_factory=list)
    processes: Processes = field(init=False)
    neighbour: Neighbour | None = None

    def __post_init__(self) -> None:
        self.processes = Processes(self.folder / "peers")

    def pids(self) -> list[int]:
        """Process ids of all that the comparison runs, and of itself."""
        found = [pid for rig in self.rigs for pid in rig.pids()] + self.processes.pids()
        return [*found, *(self.neighbour.pids() if self.neighbour else ()), os.getpid()]

    def ask(self, arm: Arm, prompts: Sequence[Prompt], max_tokens: int, number: int) -> Batch:
        """All prompts at the same time. Raises RigError."""
        beside = self.neighbour if arm.shared else None
        with beside.drafting() if beside else contextlib.nullcontext():
            load = os.getloadavg()[0]
            pids = self.pids()
            serving = self.serving(arm)
            ours = used_s(pids)
            everyone = machine_time_s()
            began = time.monotonic()
            target, worker = (used_s([pid] if pid else []) for pid in serving)
            pool = ThreadPoolExecutor(len(prompts))
            answers = list(pool.map(lambda prompt: self._one(arm, prompt, max_tokens, began), prompts))
            pool.shutdown()  # not where a signal ends this: the threads end when the servers do
            seconds = time.monotonic() - began
            others = (machine_time_s() - everyone) - (used_s(pids) - ours)
            target, worker = (
                used_s([pid] if pid else []) - at for pid, at in zip(serving, (target, worker), strict=True)
            )
        share = max(others, 0.0) / max(seconds, 0.01)
        found = Batch(arm.name, len(prompts), number, answers, seconds, share, load, neighbour=beside is not None)
        found.target_core_s = target
        found.worker_core_s = worker
        return found

    def serving(self, arm: Arm) -> tuple[int, int]:
        """Process ids of what computes the target for this arm, and of its worker or 0."""
        if arm.peer:
            return self.processes.pid(_file_name(arm.name)), 0
        rig = next(rig for rig in self.rigs if rig.folder.name == _file_name(arm.system))
        return rig.pid("gateway"), rig.pid("worker") if arm.worker else 0

    def _one(self, arm: Arm, prompt: Prompt, max_tokens: int, batch_began: float) -> Answer:
        body = greedy(prompt, max_tokens, arm.asks)
        if arm.peer:
            del body["edgespec"]
            body |= PEER_BODY
        began = time.monotonic()
        chunks = self.clients[arm.system].chunks(body)
        answer = read((time.monotonic() - began, chunk) for chunk in chunks)
        answer.sent_s = began - batch_began
        return answer

    def _rig(self, name: str, options: Mapping[str, Any]) -> Rig:
        core = self.cores[0]
        other = self.cores[-1]
        draft = str(self.scene.draft)
        return Rig(
            folder=self.folder / _file_name(name), target=str(self.scene.target), draft=draft,
            local_draft=options.get("local_draft.model", draft) or None, rtt_ms=self.scene.rtt_ms,
            engine=self.scene.engine, gateway_options={**self.scene.gateway_options(), **options},
            cores=(None if name == WIDE else core, other),
            worker_options={"draft.threads": 1, "draft.requests": self.scene.slots},
        )  # fmt: skip

    def start_gateway(self, closing: contextlib.ExitStack, *, worker: bool) -> None:
        """The gateway of our arms with a local draft, and its worker where an arm needs one."""
        rig = closing.enter_context(self._rig("gateway", {}))
        steps = [step for _, step in rig.steps()]
        for step in steps if worker else steps[:2]:
            step()
        self._serves("gateway", rig)

    def start_alone(self, closing: contextlib.ExitStack, name: str) -> None:
        """A gateway of ALONE."""
        rig = closing.enter_context(self._rig(name, ALONE[name]))
        rig.start_gateway()
        rig.create_key()
        self._serves(name, rig)

    def _serves(self, name: str, rig: Rig) -> None:
        self.rigs.append(rig)
        self.clients[name] = ChatClient(rig.ready["api"]["port"], rig.ready["model"], rig.key)

    def start_peer(self, arm: Arm) -> None:
        """A llama-server, until it is ready. Raises RigError with its last lines."""
        port = free_port()
        cores = ",".join(map(str, self.cores[: arm.cores]))
        name = _file_name(arm.name)
        self.processes.start(name, ["taskset", "-c", cores, *self.scene.peer_command(arm, port)])
        self.processes.wait_for(name, lambda: healthy(port), LOAD_S)
        self.clients[arm.name] = ChatClient(port, "any", "none")


def _file_name(name: str) -> str:
    return name.replace(" ", "-").replace(",", "")


def pinned(wanted: int) -> list[int]:
    """The cores of this process that the comparison uses, as many as are wanted. Raises ConfigError."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < wanted:
        raise ConfigError(f"These arms need {wanted} cores and this process may use {len(cores)}; leave some out.")
    return cores[:wanted]


def needed(arms: Sequence[Arm]) -> int:
    """Cores that the arms need together."""
    return max(arm.cores + arm.worker for arm in arms)


@contextlib.contextmanager
def started(scene: Scene, arms: Sequence[Arm], folder: Path) -> Iterator[Systems]:
    """Everything that the arms need, until the block is left. Raises ConfigError, ModelError, RigError."""
    systems = Systems(scene, folder, pinned(needed(arms)))
    names = {arm.system for arm in arms}
    with contextlib.ExitStack() as closing:
        if "gateway" in names:
            systems.start_gateway(closing, worker=any(arm.worker for arm in arms))
        for name in names & ALONE.keys():
            systems.start_alone(closing, name)
        closing.enter_context(systems.processes)
        for arm in arms:
            if arm.peer:
                systems.start_peer(arm)
        if scene.neighbour and any(arm.worker for arm in arms):
            beside = Neighbour(folder / "neighbour", str(scene.draft), systems.cores[1])
            systems.neighbour = closing.enter_context(beside)
        yield systems


def warm_up(systems: Systems, arms: Sequence[Arm], levels: Sequence[int], max_tokens: int) -> None:
    """Short completions of every arm at every level, which are not counted: curves fill, memory is touched."""
    for level in sorted(set(levels)):
        prompts = [f"Count from {10 * number} to {10 * number + 9} in words." for number in range(level)]
        for arm in arms:
            systems.ask(arm, prompts, min(WARM_TOKENS, max_tokens), -1)


def used_s(pids: Sequence[int]) -> float:
    """Core seconds of these processes so far, with those of threads that have ended."""
    total_s = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended; what asks it will say so
            total_s += task_stat(Path(f"/proc/{pid}")).cpu_s
    return total_s


def healthy(port: int) -> bool:
    """Whether llama-server says that its model is loaded."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as one:
            one.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return b" 200 " in one.recv(64)
    except OSError:
        return False


def versions(scene: Scene) -> dict[str, Any]:
    """The files that were used: names and sizes, never their folders."""
    files = {"target": scene.target, "peer_target": scene.peer_target, "draft": scene.draft}
    return {name: {"file": path.name, "bytes": _size(path)} for name, path in files.items()}


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)
