"""The complete system on one machine: gateway, paired workers and a delayed link, each a process of its own.

It uses the same commands as an operator and an admin; only the addresses are loopback and the state is in a separate
folder.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.parts import all_parts as worker_parts
from edgespec.worker import config as worker_config
from edgespec_lab.rig.chat import ChatClient, greedy
from edgespec_lab.rig.processes import Processes, RigError, module

LLAMACPP = "llamacpp"
"""The engine of the target that needs no part."""
TORCH = "torch"
MODEL_LOAD_S = 180.0
"""Maximum wait for a process that loads a model (a first conversion of a GGUF takes about 20 s)."""
TIMED_S = 20.0
"""In which an undisturbed worker has timed its draft steps; on a busy machine it drafts by assumed times."""
CLIENT_OPTIONS = ("offload", "ignore_eos", "usage", "policy", "k", "phi", "prefer", "sources", "verification")
"""Options that clients of a rig may give."""


@dataclass
class Rig(Processes):
    """Processes, state and addresses of one set-up."""

    folder: Path
    """State, configuration and logs of all processes."""
    target: str
    draft: str
    local_draft: str | None
    exact: bool = False
    """Each text equals plain decoding's, to the last bit; slower."""
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
    engine: str = LLAMACPP
    """`target.engine`: not left to "auto", which the figures of an arm must not depend on. Others are of parts."""
    load_s: float = MODEL_LOAD_S
    """Maximum wait for the gateway."""
    text: bool = False
    """Asks for text completions: the target has no chat template."""
    key: str = ""
    """An API key."""
    ready: dict[str, Any] = field(default_factory=dict)
    """Addresses and model's name, as the gateway's ready file has them."""
    _proxies: dict[str, int] = field(default_factory=dict)
    """Port of each worker's proxy."""

    def __post_init__(self) -> None:
        super().__init__(self.folder, last=["gateway", "proxy"])  # workers end first: they send a `bye`

    @contextlib.contextmanager
    def linked(self) -> Iterator[Rig]:
        """The rig with gateway, key, delayed link and linked worker, until the block is left."""
        with self:
            for _, step in self.steps():
                step()
            yield self

    # --- the steps, in the order of a real set-up ------------------------------------------------------------------

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """The steps that set the rig up, in their order, and a line about each."""
        return [
            ("Starting the gateway (loads the target model)", self.start_gateway),
            ("Creating an API key", self.create_key),
            (f"Putting a {self.rtt_ms:g} ms round trip between worker and gateway", self.start_proxy),
            ("Pairing the worker with a one-time code", self.pair),
            ("Starting the worker (loads the draft model)", self.start_worker),
        ]

    def start_gateway(self) -> None:
        """`cloud-gateway serve`, until every listener is ready; on the same ports as before when started again."""
        config = self._write("gateway.toml", self._gateway_config())
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [*self._gateway(), "serve", "--config", str(config), "--ready-file", str(ready)]
        self.start("gateway", command, self.cores[0])
        self.wait_for("gateway", ready.exists, self.load_s)
        self.ready = json.loads(ready.read_text())

    def create_key(self) -> None:
        """`cloud-gateway keys create`: an API key that allows offloading."""
        self.key = self._new_key("demo")

    def add_worker(self, name: str, rtt_ms: float, link: Sequence[str] = (), program: Sequence[str] = ()) -> str:
        """A further worker behind a link of its own, in a group of its own; returns the API key of that group.

        `link`: further options of `python -m edgespec_lab.wan`; `program`: what stands for `edgespec run`. What the
        gateway learns of a worker from one completion to the next is then of this link alone.
        """
        self._start_proxy(name, f"proxy-{name}", rtt_ms, link)
        self.last.append(f"proxy-{name}")
        self.pair(name, "--group", name)
        self.start_worker(name, program)
        return self._new_key(name, name)

    def start_proxy(self) -> None:
        """The delayed link, through which the worker dials."""
        self._start_proxy("worker", "proxy", self.rtt_ms)

    def _start_proxy(self, worker: str, name: str, rtt_ms: float, more: Sequence[str] = ()) -> None:
        link = f"127.0.0.1:{self.link_port}"
        command = [*module("edgespec_lab.wan"), "--to", link, "--rtt-ms", str(rtt_ms), *more]
        self.start(name, command, piped=True)
        self._proxies[worker] = int(self.line(name))

    def pair(self, worker: str = "worker", *group: str) -> None:
        """`cloud-gateway pair` here, `edgespec pair ADDRESS CODE` there."""
        offer = [*self._gateway(), "pair", *group, "--json", "--config", str(self.folder / "gateway.toml")]
        pipe = subprocess.PIPE
        environment = self.environment
        with subprocess.Popen(offer, stdout=pipe, stderr=pipe, env=environment) as gateway:
            assert gateway.stdout is not None
            try:
                code = json.loads(gateway.stdout.readline())["code"]
                self.worker_command("pair", *self._dial(worker), code, "--json", worker=worker)
                gateway.wait(timeout=30)
            finally:
                gateway.kill()  # it waits for a worker as long as its window is open
            if gateway.returncode != 0:
                raise RigError(
                    f"Pairing failed at the gateway: {gateway.stderr.read().decode() if gateway.stderr else ''}"
                )

    def start_worker(self, worker: str = "worker", command: Sequence[str] = ()) -> None:
        """`edgespec run`, or another program with the same configuration, until the gateway lists it as linked.

        `edgespec run` times its draft steps then, if this machine leaves the time.
        """
        is_other_program = bool(command)
        # The gateway on the same machine would count as the owner's work.
        command = [*(command or [*self._worker(), "run", "--always"]), "--config", str(self._worker_config(worker))]
        self.start(worker, command, self.cores[1])
        self.wait_linked(worker=worker)
        if not is_other_program:
            with contextlib.suppress(RigError):
                self.wait_for(worker, lambda: self._is_timed(worker), TIMED_S)

    def wait_linked(self, timeout_s: float = MODEL_LOAD_S, worker: str = "worker") -> None:
        """Until the gateway lists the worker as linked, with a measured round trip."""
        self.wait_for(worker, lambda: self._is_linked(f"demo-{worker}"), timeout_s)

    def restart_gateway(self, *, exact: bool) -> None:
        """The gateway again, exact or not, on the same ports; the worker reconnects by itself."""
        self.stop("gateway")
        self.exact = exact
        self.start_gateway()
        self.wait_linked()

    # --- using it --------------------------------------------------------------------------------------------------

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.ready['api']['port']}/v1"

    @property
    def link_port(self) -> int:
        """Port on which the gateway listens for workers."""
        return int(self.ready["link"]["port"])

    def chat(self, prompt: str, max_tokens: int, *, key: str = "", **edgespec: Any) -> dict[str, Any]:
        """One greedy chat answer; `edgespec` is the request's extension. Raises RigError with the API's sentence."""
        return self._client(key).complete(greedy(prompt, max_tokens, edgespec))

    def stream(self, prompt: str, max_tokens: int, **edgespec: Any) -> Iterator[dict[str, Any]]:
        """The chunks of one streamed greedy answer, usage last."""
        return self.chunks(greedy(prompt, max_tokens, edgespec))

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat answer to any body without a model's name. Raises RigError with the API's sentence."""
        return self._client().complete(body)

    def chunks(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The same as a stream, usage last."""
        return self._client().chunks(body)

    def gateway_command(self, *arguments: str) -> Any:
        """A `cloud-gateway ... --json` command's answer."""
        return self._json([*self._gateway(), *arguments, "--config", str(self.folder / "gateway.toml")])

    def worker_command(self, *arguments: str, worker: str = "worker") -> Any:
        """An `edgespec ... --json` command's answer."""
        return self._json([*self._worker(), *arguments, "--config", str(self._worker_config(worker))])

    # --- inside ----------------------------------------------------------------------------------------------------

    def _gateway(self) -> list[str]:
        return [*self.within.get("gateway", ()), *module("cloud_gateway")]

    def _worker(self) -> list[str]:
        return [*self.within.get("worker", ()), *module("edgespec")]

    def _address(self, worker: str) -> str:
        """Through this worker's proxy, or the first worker's if it has none of its own."""
        return f"wss://127.0.0.1:{self._proxies.get(worker) or self._proxies.get('worker') or self.link_port}"

    def _dial(self, worker: str) -> list[str]:
        if self.by_mdns:
            return []
        return [self._address(worker)]

    def _client(self, key: str = "") -> ChatClient:
        return ChatClient(self.ready["api"]["port"], self.ready["model"], key or self.key, self.text)

    def _new_key(self, name: str, *groups: str) -> str:
        made: str = self.gateway_command("keys", "create", "--name", name, "--json", "--offload", *groups)["key"]
        return made

    def _ports(self) -> Mapping[str, int]:
        """The ports of the gateway that was started before, by their tables; 0 for any free one."""
        ports = defaultdict[str, int](int)
        for name, listening in self.ready.items():
            if isinstance(listening, dict):
                ports[name] = listening["port"]
        return ports

    def _gateway_config(self) -> dict[str, Any]:
        from cloud_gateway.parts import all_parts  # a worker's machine has the rig, too, for its clocks
        from cloud_gateway.process.config import schema

        ports = self._ports()
        config: dict[str, Any] = {
            "target.model": self.target,
            "target.engine": self.engine,
            "api.port": ports["api"],
            "api.client_options": CLIENT_OPTIONS,
            "link.host": "0.0.0.0" if self.by_mdns else "127.0.0.1",
            "link.port": ports["link"],
            "daemon.state_dir": str(self.folder / "gateway"),
        }
        if hasattr(schema(all_parts())().link, "mdns"):
            config["link.mdns"] = self.by_mdns
        if self.exact:
            config["target.exact"] = "yes"
        if self.exact and self.engine == TORCH:
            # In bfloat16 an exact product may take 64 rows for one.
            config["target.dtype"] = "float32"

        config.update((f"{port.table}.port", ports[port.table]) for part in all_parts() for port in part.ports)
        if self.local_draft:
            config["local_draft.model"] = self.local_draft
        return config | dict(self.gateway_options)

    def _worker_config(self, worker: str) -> Path:
        config: dict[str, Any] = {
            "draft.model": self.drafts.get(worker, self.draft),
            "gateway.address": "" if self.by_mdns else self._address(worker),
            "daemon.state_dir": str(self.folder / worker),
            "daemon.name": f"demo-{worker}",
            "daemon.priority": "normal",
        }
        if hasattr(worker_config.schema(worker_parts())().gateway, "discover"):
            config["gateway.discover"] = self.by_mdns
        return self._write(f"{worker}.toml", config | dict(self.worker_options))

    def _write(self, name: str, settings: Mapping[str, Any]) -> Path:
        tables: dict[str, list[str]] = {}
        for key, value in settings.items():
            table, _, leaf = key.partition(".")
            tables.setdefault(table, []).append(f"{leaf} = {json.dumps(value)}")
        path = self.folder / name
        path.write_text("\n".join(f"[{table}]\n" + "\n".join(lines) + "\n" for table, lines in tables.items()))
        return path

    def _is_linked(self, name: str) -> bool:
        with contextlib.suppress(RigError):
            listed = self.gateway_command("workers", "list", "--json")["workers"]
            linked = (one for one in listed if one["name"] == name and one.get("linked"))
            return any(one.get("rtt_ms") is not None for one in linked)
        return False

    def _is_timed(self, worker: str) -> bool:
        """Whether the worker has timed its draft steps, if it has the part that does."""
        return self.worker_command("status", "--json", worker=worker).get("timed_step_ms", 0.0) is not None

    def _json(self, command: Sequence[str]) -> Any:
        environment = self.environment
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        if done.returncode != 0:
            raise RigError(f"`{' '.join(command[2:5])}` failed: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])
