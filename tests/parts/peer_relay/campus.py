"""A worker without a way to its gateway, relayed by peers, one of which is lost in the middle of a completion.

Four network namespaces stand in for four machines: a gateway, two peers that reach it, and a worker that reaches only
the peers. The worker pairs with the peers, and with the gateway through one; the peers themselves do not draft. Needs
root and `ip` (iproute2).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgespec.shared import control_client as control
from edgespec.shared import folders, models
from edgespec_lab.rig import Rig
from edgespec_lab.rig.processes import Processes, module
from tests.support.namespaces import ip, within

PROMPT = "Write a long story about a lighthouse keeper and the sea."
LINKS = (("gateway", "peer-1", 1), ("gateway", "peer-2", 2), ("peer-1", "worker", 3), ("peer-2", "worker", 4))
"""Pairs of machines, and the third number of their network 10.78.N.0/24: the first is .1, the second .2."""
PEERS = ("peer-1", "peer-2")
WAIT_S = 180.0
WAYS = ("stop", "cut", "kill")
"""The process is stopped, its cable is taken away, or it is killed, which comes last."""


class Machines:
    """The namespaces, from their making to their end."""

    def __init__(self) -> None:
        self.names = {name: f"es-{name}-{os.getpid()}" for name in ("gateway", *PEERS, "worker")}

    def __enter__(self) -> Machines:
        if shutil.which("ip") is None or os.geteuid() != 0:
            raise SystemExit("this needs root and the command `ip` (Debian: iproute2)")
        for name in self.names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for one, other, number in LINKS:
            ends = self.names[one], self.names[other]
            ip(*f"link add v{number} netns {ends[0]} type veth peer name v{number} netns {ends[1]}".split())
            for place, end in enumerate(ends, 1):
                ip("-n", end, "address", "add", f"10.78.{number}.{place}/24", "dev", f"v{number}")
                ip("-n", end, "link", "set", f"v{number}", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def inside(self, machine: str) -> list[str]:
        """The command that runs others on that machine."""
        return ["ip", "netns", "exec", self.names[machine]]

    def cable(self, peer: str, state: str) -> None:
        """Takes the cable between peer and worker away ("down"), which no packet says to either, or puts it back."""
        number = next(number for one, _, number in LINKS if one == peer)
        ip("-n", self.names["worker"], "link", "set", f"v{number}", state)


class Campus:
    """The daemons on the machines, paired and linked."""

    def __init__(self, folder: Path, machines: Machines, stage: Rig) -> None:
        self.folder = folder
        self.machines = machines
        self.stage = stage
        self.processes = Processes(folder)

    def set_up(self) -> None:
        """Gateway, peers linked to it, and a worker that is paired with all of them and linked through one."""
        self.stage.start_gateway()
        self.stage.create_key()
        for number, peer in enumerate(PEERS, 1):
            self._write(peer, f"10.78.{number}.1:{self.stage.link_port}")
            self._pair_with_gateway(peer, f"10.78.{number}.1:{self.stage.link_port}")
            self._start(peer)
        self._write("worker", "")
        for number, peer in enumerate(PEERS, 3):
            self._pair_with_peer(peer, f"10.78.{number}.1")
        self._pair_with_gateway("worker", "--relay")
        self._start("worker")

    def through(self) -> str:
        """The peer through which the worker is linked at present; "" for none."""
        where = self.ask("worker", "status")["address"]
        return next((peer for number, peer in enumerate(PEERS, 3) if where and f"10.78.{number}." in where), "")

    def ask(self, machine: str, method: str) -> Any:
        """The answer of a daemon's control socket."""
        return control.call(folders.socket_file("worker", str(self.folder / machine)), method)

    def _start(self, machine: str) -> None:
        command = [*self.machines.inside(machine), *module("edgespec"), "run", "--config", str(self.config(machine))]
        self.processes.start(machine, command)

        def is_linked() -> bool:
            with contextlib.suppress(Exception):
                return bool(self.ask(machine, "status")["linked"])
            return False

        self.processes.wait_for(machine, is_linked, WAIT_S)

    def _pair_with_gateway(self, machine: str, how: str) -> None:
        offer = [*self.machines.inside("gateway"), *module("cloud_gateway"), "pair", "--json"]
        self._by_code([*offer, "--config", str(self.folder / "gateway.toml")], machine, "pair", how)

    def _pair_with_peer(self, peer: str, host: str) -> None:
        offer = [*self.machines.inside(peer), *module("edgespec"), "peers", "invite", "--json"]
        self._by_code([*offer, "--config", str(self.config(peer))], "worker", "peers", "pair", host)

    def _by_code(self, offer: list[str], machine: str, *command: str) -> None:
        with subprocess.Popen(offer, stdout=subprocess.PIPE) as shown:
            assert shown.stdout is not None
            code = json.loads(shown.stdout.readline())["code"]
            self.command(machine, *command, code)
            shown.wait(30)

    def command(self, machine: str, *words: str) -> Any:
        """The JSON of an `edgespec` command there."""
        command = [*self.machines.inside(machine), *module("edgespec"), *words, "--json"]
        command += ["--config", str(self.config(machine))]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise SystemExit(f"edgespec {' '.join(words)} on {machine}: {done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])

    def config(self, machine: str) -> Path:
        return self.folder / f"{machine}.toml"

    def _write(self, machine: str, gateway: str) -> None:
        relays = machine in PEERS
        tables: dict[str, dict[str, object]] = {
            "draft": {"model": self.stage.draft},
            "gateway": {"address": gateway, "discover": False},
            "daemon": {"state_dir": str(self.folder / machine), "name": machine, "priority": "normal"},
            "owner": {"mode": "never" if relays else "always"},
            "peers": {"listen": relays, "discover": False},
            "relay": {"offer": relays},
        }
        text = [
            f"[{table}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())
            for table, keys in tables.items()
        ]
        self.config(machine).write_text("\n".join(text))


def lose_relay(campus: Campus, how: str, tokens: int) -> dict[str, Any]:
    """One completion by plain decoding, and the same while the relay in use is lost after a third of it."""
    machines = campus.machines
    stage = campus.stage
    plain = within(machines.names["gateway"], lambda: stage.chat(PROMPT, tokens, policy="plain", ignore_eos=True))
    plain_text = plain["choices"][0]["message"]["content"]
    first = campus.through()
    pieces = list[str]()
    relinked_s = list[float]()

    def lose() -> None:
        began = time.monotonic()
        if how == "cut":
            machines.cable(first, "down")
        else:
            os.kill(campus.processes.pid(first), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while campus.through() in ("", first) and time.monotonic() < deadline:
            time.sleep(0.02)
        relinked_s.append(time.monotonic() - began)

    def stream() -> dict[str, Any]:
        last: dict[str, Any] = {}
        losing = threading.Thread(target=lose)
        for chunk in stage.stream(PROMPT, tokens, policy="wanspec", phi=3.0, ignore_eos=True):
            if chunk.get("choices"):
                pieces.append(chunk["choices"][0]["delta"].get("content") or "")
            last = chunk
            if losing.ident is None and sum(map(len, pieces)) >= len(plain_text) // 3:
                losing.start()
        losing.join()
        usage: dict[str, Any] = last["usage"]
        return usage

    usage = within(machines.names["gateway"], stream)
    after = campus.through()
    if how == "cut":
        machines.cable(first, "up")
    if how == "stop":
        os.kill(campus.processes.pid(first), signal.SIGCONT)
    return {
        "relays": [first, after],
        "equal": "".join(pieces) == plain_text,
        "relinked_s": relinked_s[0],
        "usage": usage["edgespec"],
    }


@contextlib.contextmanager
def campus_on(folder: Path) -> Iterator[Campus]:
    """Everything set up below a folder, until the block is left."""
    draft = str(models.quantised())
    with Machines() as machines:
        inside = {"gateway": machines.inside("gateway")}
        with Rig(folder, draft, draft, None, exact=True, within=inside, by_mdns=True) as stage:
            campus = Campus(folder, machines, stage)
            with campus.processes:
                campus.set_up()
                yield campus
