"""The complete system on one machine: gateway, paired worker and a delayed link, each a process of its own.

It uses the same commands as an operator and an admin; only the addresses are loopback and the state is in a separate
folder. The live tests use it too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from edgespec.core.errors import EdgespecError

MODEL_LOAD_S = 180.0
"""Maximum wait for a process that loads a model (a first conversion of a GGUF takes about 20 s)."""

ANSWER_S = 300.0
"""Maximum silence of the chat API."""


class StageError(EdgespecError):
    """A process of the demo failed; the text ends with its last lines of output."""

    exit_code = 70


@dataclass(slots=True)
class Stage:
    """Processes, state and addresses of one set-up. Use as a context manager: leaving it ends every process."""

    folder: Path
    """State, configuration and logs of all processes."""
    target: str
    draft: str
    local_draft: str | None
    dtype: str = "bfloat16"
    rtt_ms: float = 20.0
    gateway_options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings, `table.key` -> value."""
    worker_options: Mapping[str, Any] = field(default_factory=dict)
    cores: Sequence[int | None] = (None, None)
    """Cores of gateway and worker."""
    within: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Command that runs others in the machine of `gateway` or `worker`, such as `ip netns exec NAME`."""
    drafts: Mapping[str, str] = field(default_factory=dict)
    """Further workers by name, and their draft models; `worker` itself takes `draft`."""
    by_mdns: bool = False
    """The worker finds the gateway on the network, rather than at a known address through the proxy."""
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _key: str = ""
    _ready: dict[str, Any] = field(default_factory=dict)
    _proxy_port: int = 0

    def __enter__(self) -> Stage:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for name in sorted(self._running, key=("proxy", "gateway").__contains__):  # workers first: they send a `bye`
            self.stop(name)

    # --- the steps, in the order of a real set-up ------------------------------------------------------------------

    def start_gateway(self) -> None:
        """`cloud-gateway serve`, until every listener is ready; on the same ports as before when started again."""
        config = self._write("gateway.toml", self._gateway_config())
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [*self._gateway(), "serve", "--config", str(config), "--ready-file", str(ready)]
        self._start("gateway", command, self.cores[0])
        self._wait_for("gateway", ready.exists, MODEL_LOAD_S)
        self._ready = json.loads(ready.read_text())

    def create_key(self) -> None:
        """`cloud-gateway keys create`: an API key that allows offloading."""
        made = self.gateway_command("keys", "create", "--name", "demo", "--offload", "--json")
        self._key = made["key"]

    def start_proxy(self) -> None:
        """The delayed link; a worker that dials `worker_address` goes through it."""
        link = f"127.0.0.1:{self.link_port}"
        command = [*_module("edgespec.lab.wan"), "--to", link, "--rtt-ms", str(self.rtt_ms)]
        process = self._start("proxy", command, None, stdout=subprocess.PIPE)
        assert process.stdout is not None
        self._proxy_port = int(process.stdout.readline())

    def pair(self, worker: str = "worker") -> None:
        """`cloud-gateway pair` here, `edgespec pair ADDRESS CODE` there."""
        offer = [*self._gateway(), "pair", "--json", "--config", str(self.folder / "gateway.toml")]
        with subprocess.Popen(offer, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as gateway:
            assert gateway.stdout is not None
            code = json.loads(gateway.stdout.readline())["code"]
            self.worker_command("pair", *self._dial(), code, "--json", worker=worker)
            gateway.wait(timeout=30)
            if gateway.returncode != 0:
                raise StageError(
                    f"Pairing failed at the gateway: {gateway.stderr.read().decode() if gateway.stderr else ''}"
                )

    def start_worker(self, worker: str = "worker", command: Sequence[str] = ()) -> None:
        """`edgespec run`, or another program with the same configuration, until the gateway lists it as linked."""
        command = [*(command or [*self._worker(), "run"]), "--config", str(self._worker_config(worker))]
        self._start(worker, command, self.cores[1])
        self.wait_linked(worker=worker)

    def wait_linked(self, timeout_s: float = MODEL_LOAD_S, worker: str = "worker") -> None:
        """Until the gateway lists the worker as linked, with a measured round trip."""
        self._wait_for(worker, lambda: self._is_linked(worker), timeout_s)

    def stop(self, name: str, sig: signal.Signals = signal.SIGTERM) -> None:
        """Ends one process; waits until it has gone."""
        process = self._running.pop(name, None)
        if process is None or process.poll() is not None:
            return
        process.send_signal(sig)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart_gateway(self, dtype: str) -> None:
        """The gateway again, with another data type, on the same ports; the worker reconnects by itself."""
        self.stop("gateway")
        self.dtype = dtype
        self.start_gateway()
        self.wait_linked()

    # --- using it --------------------------------------------------------------------------------------------------

    @property
    def api(self) -> str:
        """Base URL of the chat API."""
        return f"http://127.0.0.1:{self._ready['api']['port']}/v1"

    @property
    def key(self) -> str:
        """An API key."""
        return self._key

    @property
    def link_port(self) -> int:
        """Port on which the gateway listens for workers."""
        return int(self._ready["link"]["port"])

    @property
    def worker_address(self) -> str:
        """The address that the worker dials: through the proxy when there is one."""
        return f"wss://127.0.0.1:{self._proxy_port or self.link_port}"

    def runs(self, name: str) -> bool:
        """Whether this process was started and has not ended."""
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def pids(self) -> list[int]:
        """Process ids of all that runs."""
        return [process.pid for process in self._running.values()]

    def pid(self, name: str) -> int:
        """Process id of `gateway`, `worker` or `proxy`."""
        return self._running[name].pid

    def chat(self, prompt: str, max_tokens: int, **edgespec: Any) -> dict[str, Any]:
        """One greedy chat answer; `edgespec` is the request's extension. Raises StageError with the API's sentence."""
        return self.complete(_greedy(prompt, max_tokens, edgespec))

    def stream(self, prompt: str, max_tokens: int, **edgespec: Any) -> Iterator[dict[str, Any]]:
        """The chunks of one streamed greedy answer, usage last."""
        return self.chunks(_greedy(prompt, max_tokens, edgespec))

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat answer to any body without a model's name. Raises StageError with the API's sentence."""
        with self._post(body) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def chunks(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The same as a stream, usage last."""
        with self._post({**body, "stream": True, "stream_options": {"include_usage": True}}) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    def gateway_command(self, *arguments: str) -> Any:
        """A `cloud-gateway ... --json` command's answer."""
        return self._json([*self._gateway(), *arguments, "--config", str(self.folder / "gateway.toml")])

    def worker_command(self, *arguments: str, worker: str = "worker") -> Any:
        """An `edgespec ... --json` command's answer."""
        return self._json([*self._worker(), *arguments, "--config", str(self._worker_config(worker))])

    def log(self, name: str) -> str:
        """The output of a process so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- inside ----------------------------------------------------------------------------------------------------

    def _gateway(self) -> list[str]:
        return [*self.within.get("gateway", ()), *_module("cloud_gateway")]

    def _worker(self) -> list[str]:
        return [*self.within.get("worker", ()), *_module("edgespec")]

    def _dial(self) -> list[str]:
        return [] if self.by_mdns else [self.worker_address]

    def _post(self, body: Mapping[str, Any]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._ready["api"]["port"], timeout=ANSWER_S)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        whole = json.dumps({"model": self._ready["model"], **body})
        try:
            connection.request("POST", "/v1/chat/completions", whole, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise StageError(f"The chat API did not answer within {ANSWER_S:g} s, or broke off ({error}).") from None
        if response.status != HTTPStatus.OK:
            raise StageError(f"The chat API answered {response.status}: {response.read().decode(errors='replace')}")
        return response

    def _gateway_config(self) -> dict[str, Any]:
        ports = self._ready or {"api": {"port": 0}, "link": {"port": 0}, "metrics": {"port": 0}}
        config: dict[str, Any] = {
            "target.model": self.target,
            "target.dtype": self.dtype,
            "api.port": ports["api"]["port"],
            "api.client_options": ["offload", "ignore_eos", "policy", "k", "phi", "verification"],
            "link.host": "0.0.0.0" if self.by_mdns else "127.0.0.1",  # noqa: S104  another machine must reach it
            "link.port": ports["link"]["port"],
            "link.mdns": self.by_mdns,
            "metrics.port": ports["metrics"]["port"],
            "daemon.state_dir": str(self.folder / "gateway"),
        }
        if self.local_draft:
            config["local_draft.model"] = self.local_draft
        return config | dict(self.gateway_options)

    def _worker_config(self, worker: str) -> Path:
        config = {
            "draft.model": self.drafts.get(worker, self.draft),
            "gateway.address": "" if self.by_mdns else self.worker_address,
            "gateway.discover": self.by_mdns,
            "daemon.state_dir": str(self.folder / worker),
            "daemon.name": f"demo-{worker}",
        }
        return self._write(f"{worker}.toml", config | dict(self.worker_options))

    def _write(self, name: str, settings: Mapping[str, Any]) -> Path:
        tables: dict[str, list[str]] = {}
        for key, value in settings.items():
            table, _, leaf = key.partition(".")
            tables.setdefault(table, []).append(f"{leaf} = {json.dumps(value)}")
        path = self.folder / name
        path.write_text("\n".join(f"[{table}]\n" + "\n".join(lines) + "\n" for table, lines in tables.items()))
        return path

    def _start(self, name: str, command: Sequence[str], core: int | None, stdout: int | None = None) -> Any:
        log = (self.folder / f"{name}.log").open("ab")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        pin = [] if core is None else ["taskset", "-c", str(core)]
        with log:
            process = subprocess.Popen([*pin, *command], stdout=stdout or log, stderr=log, env=environment)
        self._running[name] = process
        return process

    def _wait_for(self, name: str, done: Any, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if self._running[name].poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log(name).splitlines()[-8:])
                raise StageError(f"The {name} did not get ready. It wrote:\n{tail}")
            time.sleep(0.05)

    def _is_linked(self, worker: str) -> bool:
        with contextlib.suppress(StageError):
            listed = self.gateway_command("workers", "list", "--json")["workers"]
            linked = (one for one in listed if one["name"] == f"demo-{worker}" and one.get("linked"))
            return any(one.get("rtt_ms") is not None for one in linked)
        return False

    def _json(self, command: Sequence[str]) -> Any:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise StageError(f"`{' '.join(command[2:5])}` failed: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])


def _greedy(prompt: str, max_tokens: int, edgespec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "edgespec": dict(edgespec),
    }


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]
