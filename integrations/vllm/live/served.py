"""`python -m integrations.vllm.live.served VENV [--json FILE]`: a served vLLM, a link process and a paired worker.

Run in edgespec's environment; `VENV` is what `make vllm` made. Arms, in turns: vLLM as it is; vLLM with edgespec-vllm
and no consent; with consent. Each is a steady window: every client has a next request until the window has ended. vLLM
has the first core, the worker the second one. Then link process and worker are killed in the middle of a completion and
started again. Exit status 1 if a text differs or drafts stay away.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.shared.models import resolve_model
from edgespec_lab.demo.scene import PROMPTS
from edgespec_lab.rig.processes import Processes, RigError, free_port, module
from edgespec_lab.rig.stage import Rig

INTEGRATION = Path(__file__).parents[1]
DRAFTS = 8
SERVE_S = 900.0
LINK_S = 60.0


class LinkRig(Rig):
    """A link process in the place of the gateway."""

    def start_gateway(self) -> None:
        """`cloud-gateway link`, until it has named its port; on the same port as before when started again."""
        config = self._write("gateway.toml", self._link_config())
        before = len(self.log("gateway")) if (self.folder / "gateway.log").exists() else 0
        command = [*module("cloud_gateway"), "link", self.target, "--config", str(config)]
        self.start("gateway", command)
        self.wait_for("gateway", lambda: "board " in self.log("gateway")[before:], LINK_S)
        port = re.search(r"workers +wss://[^:]+:(\d+)", self.log("gateway")[before:])
        assert port is not None
        self.ready = {"link": {"port": int(port[1])}}

    def _link_config(self) -> dict[str, Any]:
        port = self.ready["link"]["port"] if self.ready else 0
        return {
            "link.host": "127.0.0.1", "link.port": port, "link.mdns": False,
            "daemon.state_dir": str(self.folder / "gateway"),
        }  # fmt: skip


class Counts(NamedTuple):
    """Tokens since vLLM's start: generated, verified as drafts, and accepted of these."""

    tokens: int
    drafted: int
    accepted: int


COUNTERS = ("generation_tokens", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")


@dataclass
class Server:
    """One `vllm serve`."""

    venv: Path
    processes: Processes
    board: Path | None = None
    """The board of the link process; None: vLLM as it is."""
    model: str = ""
    """A folder; empty: SmolLM2."""
    more: Sequence[str] = ()
    """Further options of `vllm serve`."""
    port: int = field(default_factory=free_port)

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        """Until the block is left; logs in the folder of the processes."""
        model = self.model or str(self.venv / "smol")
        command = [
            str(self.venv / "bin/vllm"), "serve", model, "--served-model-name", "smol", "--host", "127.0.0.1",
            "--port", str(self.port), "--max-model-len", "2048", "--dtype", "float32", "--enforce-eager",
            "--no-enable-prefix-caching", "--max-num-seqs", "8", *self.more,
        ]  # fmt: skip
        if self.board is not None:
            speculation = {"method": "custom_class", "model": "edgespec_vllm.Null", "num_speculative_tokens": DRAFTS}
            command += ["--scheduler-cls", "edgespec_vllm.Scheduler", "--speculative-config", json.dumps(speculation)]
        name = f"vllm-{self.port}"
        self.processes.start(name, command)
        try:
            self.processes.wait_for(name, self._healthy, SERVE_S)
            yield self
        finally:
            self.processes.stop(name)

    def _healthy(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/health")[0] == 200
        time.sleep(0.5)
        return False

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def counts(self) -> Counts:
        """By vLLM's own metrics, of all engines."""
        text = self.get("/metrics")[1]
        found = [re.findall(rf"^vllm:{name}_total.* (\S+)$", text, re.M) for name in COUNTERS]
        return Counts(*(int(sum(map(float, values))) for values in found))

    def complete(self, prompt: str, max_tokens: int, arm: str = "worker") -> str:
        """A greedy completion's text."""
        body: dict[str, Any] = {"model": "smol", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": prompt}]
        if arm not in ALONE:
            body["vllm_xargs"] = {"edgespec_offload": "default"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        found = json.loads(response.read())
        if response.status != 200:
            raise RigError(f"vLLM refuses: {found}")

        return str(found["choices"][0]["message"]["content"])


ALONE = ("plain", "no consent")
"""Arms whose requests no worker sees."""


@dataclass
class Run:
    """Completions of one arm by one number of streams."""

    arm: str
    streams: int
    turn: int
    tokens_per_s: float
    drafted: int
    accepted: int
    texts: dict[str, set[str]]
    """By prompt: one text each, if all is right."""


class Clients:
    """Clients that each send a next request as soon as the last one has ended."""

    def __init__(self, server: Server, arm: str, prompts: Sequence[str], max_tokens: int) -> None:
        self._server = server
        self._arm = arm
        self._prompts = itertools.cycle(prompts)
        self._max_tokens = max_tokens
        self._changed = threading.Condition()
        self._over = False
        self._ended = 0
        self.texts: dict[str, set[str]] = {}

    def run(self) -> None:
        """One client, in a thread of its own."""
        while True:
            with self._changed:
                if self._over:
                    return
                prompt = next(self._prompts)
            text = self._server.complete(prompt, self._max_tokens, self._arm)
            with self._changed:
                self._ended += 1
                self.texts.setdefault(prompt, set()).add(text)
                self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Returns once so many completions have ended. Raises RigError if they do not within SERVE_S."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended >= count, SERVE_S):
                raise RigError(f"{self._ended} of {count} completions have ended after {SERVE_S:.0f} s")

    def end(self) -> None:
        """No further request is sent."""
        with self._changed:
            self._over = True


def measure(server: Server, arm: str, prompts: Sequence[str], streams: int, max_tokens: int, turn: int = 0) -> Run:
    """A steady window with `streams` clients that always have a next request.

    It begins when as many completions as there are clients have ended, and ends `len(prompts)` completions later: what
    the batch takes to fill and to drain lies outside. Tokens are counted by vLLM as it generates them.
    """
    clients = Clients(server, arm, prompts, max_tokens)
    with ThreadPoolExecutor(streams) as pool:
        running = [pool.submit(clients.run) for _ in range(streams)]
        try:
            clients.wait(streams)
            before = server.counts()
            began = time.perf_counter()
            clients.wait(streams + len(prompts))
            seconds = time.perf_counter() - began
            after = server.counts()
        finally:
            clients.end()
        for client in running:
            client.result()
    pace = (after.tokens - before.tokens) / seconds
    drafted = after.drafted - before.drafted
    return Run(arm, streams, turn, pace, drafted, after.accepted - before.accepted, clients.texts)


def lose(server: Server, prompt: str, max_tokens: int, ways: Sequence[Callable[[], object]]) -> str:
    """A completion's text, in whose middle something is killed and started again."""
    with ThreadPoolExecutor(1) as pool:
        completion = pool.submit(server.complete, prompt, max_tokens)
        time.sleep(1.0)
        for way in ways:
            way()
        return completion.result()


def variables(venv: Path, folder: Path) -> dict[str, str]:
    """Of the processes; `folder`: of the rig, and so of the board."""
    return {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0", "LD_PRELOAD": str(venv / "lib/libiomp5.so"),
        "PYTHONPATH": str(INTEGRATION), "EDGESPEC_BOARD": str(folder / "rig" / "gateway" / "board.sock"),
    }  # fmt: skip


def arms(venv: Path, processes: Processes, rig: LinkRig, prompts: Sequence[str], options: Any) -> list[Run]:
    """All runs, in their order."""
    runs: list[Run] = []

    def add(server: Server, arm: str, some: Sequence[str], streams: int, turn: int = 0) -> None:
        runs.append(measure(server, arm, some, streams, options.max_tokens, turn))
        print(f"{arm:12} {streams} {runs[-1].tokens_per_s:6.1f} tokens/s", file=sys.stderr, flush=True)

    for step in (rig.start_gateway, rig.start_proxy, rig.pair, rig.start_worker):
        step()
    board = rig.folder / "gateway" / "board.sock"
    with Server(venv, processes).running() as plain, Server(venv, processes, board).running() as server:
        for one in (plain, server):
            one.complete(prompts[-1], 32)
        for turn, streams in itertools.product(range(options.turns), options.streams):
            for arm in ("plain", "no consent", "worker"):
                add(plain if arm == "plain" else server, arm, prompts, streams, turn)
        starts: dict[str, Callable[[], object]] = {"worker": rig.start_worker, "gateway": rig.start_gateway}
        for name, start in starts.items():
            text = lose(server, prompts[0], options.max_tokens, [lambda: rig.stop(name, signal.SIGKILL), start])  # noqa: B023
            runs.append(Run(f"{name} killed", 1, 0, 0.0, 0, 0, {prompts[0]: {text}}))
            rig.wait_linked()
        add(server, "afterwards", prompts[:2], 1)

    return runs


def differing(found: Mapping[str, set[str]], wanted: Mapping[str, set[str]]) -> int:
    """Prompts with more than one text."""
    return sum(len(texts | wanted.get(prompt, set())) > 1 for prompt, texts in found.items())


def report(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each run: tokens a second, also as a multiple of plain vLLM; drafts; texts that differ from plain's."""
    plain = {(run.turn, run.streams): run.tokens_per_s for run in runs if run.arm == "plain"}
    wanted: dict[str, set[str]] = {}
    for run in runs:
        for prompt, texts in run.texts.items() if run.arm == "plain" else ():
            wanted.setdefault(prompt, set()).update(texts)

    return [
        {
            "arm": run.arm, "streams": run.streams, "tokens_per_s": round(run.tokens_per_s, 1),
            "of_plain": round(run.tokens_per_s / plain.get((run.turn, run.streams), inf), 2),
            "drafted": run.drafted, "accepted": run.accepted,
            "texts": len(run.texts), "differ": differing(run.texts, wanted),
        }
        for run in runs
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table; `link process` and `worker` killed have no figures but their texts."""
    parser = argparse.ArgumentParser(prog="python -m integrations.vllm.live.served", description=__doc__)
    parser.add_argument("venv", type=Path, help="what `make vllm` made")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--rtt-ms", type=float, default=15.0, metavar="MS", help="round trip to the worker")
    parser.add_argument("--prompts", type=int, default=8, metavar="N", help="completions in each arm's window")
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N", help="tokens of a completion")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="clients at a time")
    parser.add_argument("--turns", type=int, default=1, metavar="N", help="how often all arms run")
    parser.add_argument("--draft", default="auto:quantised", metavar="MODEL", help="the worker's draft model")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep logs and state there")
    options = parser.parse_args(argv)
    venv = options.venv.resolve()
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][: options.prompts]
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        os.environ["PYTHONPATH"] = str(INTEGRATION)  # `cloud-gateway link` imports edgespec_vllm
        draft = str(resolve_model(options.draft))
        rig = LinkRig(folder / "rig", str(venv / "smol"), draft, None, rtt_ms=options.rtt_ms, cores=(None, 1))
        with rig, Processes(folder, environment=variables(venv, folder)) as processes:
            rows = report(arms(venv, processes, rig, prompts, options))
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps({"rtt_ms": options.rtt_ms, "k": DRAFTS, "rows": rows}, indent=1))
    drafts = all(row["accepted"] > 0 for row in rows if row["arm"] in ("worker", "afterwards"))
    if not drafts:
        print("The worker's drafts came too late for vLLM to use any: is the machine busy?", file=sys.stderr)
    if drafts and not any(row["differ"] for row in rows):
        return 0

    return 1


if __name__ == "__main__":
    sys.exit(main())
