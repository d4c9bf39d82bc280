"""The commands of an operator and two lab admins, in the order of README and the manual."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from edgespec_lab.rig import free_port
from edgespec_lab.rig.chat import ChatClient, greedy
from tools.check.wheel.place import COMMAND_S, ROOT, Place, Row

EXCUSED = {
    ("edgespec", "tune"): "takes minutes; --long runs it",
    ("cloud-gateway", "tune"): "the same",
    ("edgespec", "learn"): "takes minutes and the extra `learn`; tests/parts/healing runs it",
}
"""Shown by a page and not run, or not always."""
TOKENS = 400
"""Tokens of the completion that is requested while a worker is linked."""
AWAKE: dict[str, object] = {"owner.mode": "always", "gateway.discover": "false"}
"""The owner of this machine types, and its network is not a lab's."""


def play(worker: Place, gateway: Place, *, long: bool) -> None:
    """Types everything but what one place alone can do; the rows are in the places."""
    for words in (["make", "--drop", "10"], ["check", "auto:quantised"], ["list"]):
        gateway.run("edgespec", "models", *words)
    gateway.run("cloud-gateway", "models", "check", "auto:quantised", "auto:requantised")
    gateway.run("cloud-gateway", "config", into="gateway.toml")
    ready = gateway.folder / "ready.json"
    traces = gateway.folder / "traces"
    settings = {
        "policy.name": "wanspec",
        "link.host": "127.0.0.1",
        "link.mdns": "false",
        "traces.folder": traces,
        "daemon.log_level": "warning",
    }
    ports = ["--port", "0", "--link-port", "0", "--metrics-port", "0", "--ready-file", str(ready)]
    secret = gateway.json("cloud-gateway", "keys", "create", "--name", "alice", "--offload")["key"]
    with gateway.running("cloud-gateway", "serve", "--config", "gateway.toml", *ports, *assigned(settings)) as serving:
        gateway.until(ready.is_file, serving, "The gateway's start")
        at = json.loads(ready.read_text())
        operate(gateway)
        with_worker(worker, gateway, at, ChatClient(at["api"]["port"], at["model"], secret))
    for service in ("install-service", "uninstall"):
        gateway.run("cloud-gateway", service, "--user", "--dry-run", expected=78 if service == "uninstall" else 0)
    gateway.run("cloud-gateway", "identity", "rotate")
    shutil.copy(next(traces.glob("*.trace")), worker.folder / "one.trace")
    worker.run("edgespec", "replay", "one.trace")
    shutil.copy(ROOT / "tests/parts/request_traces/traces/wanspec-20ms.trace", worker.folder)
    worker.run("cloud-gateway", "replay", "wanspec-20ms.trace")
    shutil.copy(ROOT / "tests/parts/request_traces/traces/wanspec-20ms.trace", gateway.folder)
    gateway.run("edgespec", "compare", "wanspec-20ms.trace", "--policy", "adaptive", "--policy", "plain")
    gateway.run("edgespec", "plan", "--target-ms", "35", "--draft-ms", "6", "--rtt-ms", "8", "--right", ".75")
    if long:
        gateway.run("edgespec", "demo", "--limit", "1", "--max-tokens", "16", "--no-identity")
        gateway.run("edgespec", "tune", "--limit", "1", "--max-tokens", "16")


def alone(worker: Place) -> None:
    """The commands without a gateway, and what `[worker]` lacks."""
    for program in ("edgespec", "cloud-gateway"):
        worker.run(program, "version")
    worker.run("edgespec", "models", "fetch", "auto:quantised")
    worker.run("edgespec", "models", "make", "--format", "q4_0")
    worker.run("edgespec", "models", "list")
    worker.run("edgespec", "config", into="worker.toml")
    worker.run("edgespec", "install-service", "--user", "--dry-run")
    worker.run("edgespec", "uninstall", "--user", expected=78)
    for words in (
        ["edgespec", "models", "make", "--drop", "10"],
        ["cloud-gateway", "models", "check", "auto:quantised", "auto:quantised"],
        ["edgespec", "compare", "one.trace"],
        ["edgespec", "demo"],
        ["edgespec", "plan"],
        ["edgespec", "tune"],
        ["cloud-gateway", "serve"],
    ):
        worker.run(*words, expected=69)
    worker.run("edgespec", "status", expected=71)
    worker.run("edgespec", "doctor", expected=77)


def operate(gateway: Place) -> None:
    """Commands of an operator beside the running gateway."""
    gateway.run("cloud-gateway", "status")
    gateway.run("cloud-gateway", "models", "list")
    gateway.run("cloud-gateway", "keys", "create", "--name", "chemistry-bot", "--offload", "chemistry", "trusted")
    made = gateway.json("cloud-gateway", "keys", "create", "--name", "batch")
    gateway.run("cloud-gateway", "keys", "list")
    gateway.run("cloud-gateway", "keys", "revoke", made["id"])
    gateway.run("cloud-gateway", "audit", "--since", "24h", "--json")


def with_worker(worker: Place, gateway: Place, at: dict[str, Any], client: ChatClient) -> None:
    """A worker is paired, drafts, relays a peer, is revoked, and forgets its gateway."""
    address = f"wss://127.0.0.1:{at['link']['port']}"
    peer_port = free_port()
    with offered(gateway, "cloud-gateway", "pair", "--group", "default") as code:
        paired = worker.json("edgespec", "pair", address, code)
    relaying = {"peers.listen": "true", "peers.host": "127.0.0.1", "peers.port": peer_port, "relay.offer": "true"}
    with worker.running("edgespec", "run", "--config", "worker.toml", *assigned(AWAKE | relaying)) as running:
        worker.until(lambda: (worker.quietly("edgespec", "status") or {}).get("linked"), running, "The worker's link")
        # The number of drafts in time depends on what else runs; tests/live/test_main_job.py holds that it drafts.
        usage = client.complete(greedy("Tell me about lighthouses.", TOKENS, {"ignore_eos": True}))["usage"]
        accepted = usage["edgespec"]["accepted"].get("worker", 0)
        said = f"{accepted} of {usage['completion_tokens']} tokens drafted by the worker"
        is_short = int(usage["completion_tokens"] != TOKENS)
        worker.rows.append(Row("gateway", "POST /v1/chat/completions", is_short, (0,), said))
        worker.run("edgespec", "status")
        worker.run("edgespec", "pause", "--reason", "exam week")
        worker.run("edgespec", "resume")
        worker.run("edgespec", "peers")
        meet(worker, gateway, peer_port)
        worker.run("edgespec", "doctor", expected=(0, 66, 75))  # this machine is busy, or its draft slow
        (name,) = (one["id"] for one in gateway.json("cloud-gateway", "workers", "list")["workers"] if one["linked"])
        gateway.run("cloud-gateway", "workers", "group", name, "chemistry", "trusted")
        gateway.run("cloud-gateway", "workers", "expire", name, "90d")
        gateway.run("cloud-gateway", "workers", "release", name, expected=77)
        gateway.run("cloud-gateway", "audit", "--since", "24h")
    gateway.run("cloud-gateway", "workers", "revoke", name)
    worker.run("edgespec", "unpair", paired["gateway"])
    worker.run("edgespec", "keys", "rotate")


def meet(worker: Place, gateway: Place, port: int) -> None:
    """A second worker is paired with the first as a peer, and through it with the gateway."""
    peer = replace(worker, name="peer", folder=worker.folder / "peer")
    peer.folder.mkdir()
    with offered(worker, "edgespec", "peers", "invite") as code:
        peer.run("edgespec", "peers", "pair", f"127.0.0.1:{port}", code)
    with offered(gateway, "cloud-gateway", "pair") as code:
        peer.run("edgespec", "pair", "--relay", code)
    peer.run("edgespec", "peers", "forget", worker.json("edgespec", "status")["name"])


@contextmanager
def offered(place: Place, *words: str) -> Iterator[str]:
    """The code that a command shows while it waits for its use."""
    with place.running(*words, "--json") as offering:
        assert offering.stdout is not None
        yield str(json.loads(offering.stdout.readline())["code"])
        offering.wait(COMMAND_S)


def assigned(settings: Mapping[str, object]) -> list[str]:
    """The options that override keys."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
