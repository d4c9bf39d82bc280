"""The installed services under a real systemd: start, readiness, restarts, watchdog, stop, and what is left of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.parts.system_service import gateway_unit
from edgespec.parts.system_service.unit import WORKER as WORKER_UNIT
from edgespec.parts.system_service.unit import Unit
from tests.parts.system_service.booted import CODE, COMMAND_S, FILES, LOGS, SYSTEMD, Booted, CannotBoot, booted, shown
from tests.support.tiny_gguf import make_tiny_gguf

pytestmark = [pytest.mark.live, pytest.mark.timeout(1400)]
WORKER = "edgespec.service"
GATEWAY = "cloud-gateway.service"
OWNER = "owner"
TOKENS = 60
CONFIGS = f"{FILES}/a b 50%n $HOME ${{HOME}} \"'\\\\ --set x=1"
"""A folder whose name systemd would take apart if it were not quoted."""
ASK = f"""
import sys
from edgespec_lab.rig.chat import ChatClient, greedy
body = greedy("the cat sat", {TOKENS}, {{"ignore_eos": True}})
print(repr(ChatClient(8080, "target", sys.argv[1]).complete(body)["choices"][0]["message"]["content"]))
"""


@contextmanager
def machine(folder: Path) -> Iterator[Booted]:
    """A booted machine with the models and configurations of a gateway and a worker."""
    files = folder / "files"
    root = folder / "root"
    root.mkdir()
    make_tiny_gguf(files / "target.gguf")
    make_tiny_gguf(files / "draft.gguf", unlike=0.05)
    configs = files / Path(CONFIGS).name
    configs.mkdir()
    (configs / "gateway.toml").write_text(
        f'[target]\nmodel = "{FILES}/target.gguf"\nengine = "llamacpp"\ndtype = "float32"\nexact = "yes"\n'
        'context = 512\nslots = 2\nthreads = 1\n[local_draft]\nmodel = ""\n'
        '[link]\nhost = "127.0.0.1"\nmdns = false\nname = "campus"\n'
    )
    (configs / "worker.toml").write_text(
        f'[draft]\nmodel = "{FILES}/draft.gguf"\ncontext = 1024\nthreads = 1\n[owner]\nmode = "always"\n'
        "[gateway]\ndiscover = false\n"
    )
    try:
        with booted(root, files) as ready:
            yield ready
    except CannotBoot as why:
        pytest.skip(str(why))


def adjust(on: Booted, unit: str, *lines: str) -> None:
    """A drop-in: the places of this checkout and of the log, and a restart after 1 s rather than 30."""
    text = ["[Service]", *shown(), f"StandardOutput=append:{LOGS}/{unit}.log", "RestartSec=1", *lines, ""]
    on.write(f"/etc/systemd/system/{unit}.d/here.conf", "\n".join(text))
    on.run("systemctl", "daemon-reload")


def install(on: Booted, unit: str) -> None:
    """`install-service` of a program."""
    name, role = ("cloud_gateway", "gateway") if unit == GATEWAY else ("edgespec", "worker")
    on.python("-m", name, "install-service", "--config", f"{CONFIGS}/{role}.toml")


def pair(on: Booted, *command: str, user: str = "") -> None:
    """`cloud-gateway pair`, and a command of the worker's side."""
    offer = on.command(sys.executable, "-m", "cloud_gateway", "pair", "--json")
    with subprocess.Popen(offer, stdout=subprocess.PIPE, text=True) as gateway:
        try:
            assert gateway.stdout is not None
            code = json.loads(gateway.stdout.readline())["code"]
            on.run(*command, "pair", "wss://127.0.0.1:7443", code, user=user)
            assert gateway.wait(COMMAND_S) == 0
        finally:
            gateway.kill()  # it waits for a worker as long as its window is open


def pair_service(on: Booted) -> None:
    """The command of docs/worker.md, as the service's user."""
    settings = ["DynamicUser=yes", "User=edgespec", "StateDirectory=edgespec", *shown()]
    options = [part for line in settings for part in ("-p", line)]
    pair(on, "systemd-run", "-P", *options, str(Path(sys.executable).with_name("edgespec")))


def linked(on: Booted, user: str = "") -> bool:
    """Whether the worker's unit says so."""
    return on.show(WORKER, "StatusText", user) == "linked to campus"


def workers(on: Booted) -> Any:
    """The workers that the gateway lists."""
    return json.loads(on.python("-m", "cloud_gateway", "workers", "list", "--json"))["workers"]


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    """A machine on which both services were installed, paired and linked."""
    with machine(tmp_path_factory.mktemp("booted")) as on:
        for unit in (GATEWAY, WORKER):
            adjust(on, unit)
        install(on, GATEWAY)
        pair_service(on)
        install(on, WORKER)
        on.wait(lambda: linked(on))
        yield on


@pytest.mark.claim("a-path-in-a-unit-is-one-word")
def test_both_services_are_ready_and_draft(campus: Booted) -> None:
    status = campus.run("systemctl", "status", "--no-pager", WORKER, GATEWAY)
    assert 'Status: "serving target"' in status and 'Status: "linked to campus"' in status
    texts = []
    for options in ((), ("--offload",)):
        made = campus.python("-m", "cloud_gateway", "keys", "create", "--name", "a", "--json", *options)
        texts.append(campus.python("-c", ASK, json.loads(made)["key"]))
    assert texts[0] == texts[1] and len(texts[0]) > TOKENS
    assert json.loads(campus.python("-m", "edgespec", "status", "--json"))["requests"] >= 1


@pytest.mark.parametrize("service", [WORKER_UNIT, gateway_unit()])
def test_a_model_is_fetched_where_the_service_reads_it(campus: Booted, service: Unit) -> None:
    environment = campus.run(*service.as_service(["env"]))
    (cache,) = re.findall(r"^XDG_CACHE_HOME=(.*)$", environment, re.MULTILINE)
    assert f"XDG_CACHE_HOME={cache}" in campus.show(service.name, "Environment").split()
    campus.run(*service.as_service(["mkdir", "-p", f"{cache}/edgespec/models"]))
    owners = campus.run(*service.as_service(["stat", "-c", "%U", f"{cache}/edgespec/models"]))
    assert owners.strip() == service.name.removesuffix(".service")


@pytest.mark.parametrize("unit", [WORKER, GATEWAY])
def test_a_service_that_is_killed_starts_again(campus: Booted, unit: str) -> None:
    before = campus.show(unit, "MainPID")
    campus.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", unit)
    campus.wait(lambda: campus.show(unit, "MainPID") not in (before, "0"))
    campus.wait(lambda: campus.show(unit, "ActiveState") == "active" and linked(campus))


@pytest.mark.parametrize("unit", [WORKER, GATEWAY])
def test_a_service_that_hangs_is_ended_by_the_watchdog(campus: Booted, unit: str) -> None:
    adjust(campus, unit, "WatchdogSec=10", "RestartSec=1h")
    campus.run("systemctl", "restart", unit)
    campus.run("systemctl", "kill", "--kill-who=main", "--signal=STOP", unit)
    campus.wait(lambda: campus.show(unit, "SubState") == "auto-restart")
    assert campus.show(unit, "Result") == "watchdog"
    adjust(campus, unit)
    campus.run("systemctl", "restart", unit)
    campus.wait(lambda: linked(campus))


def test_a_worker_that_is_stopped_leaves_the_gateway(campus: Booted) -> None:
    campus.run("systemctl", "stop", WORKER)
    assert [campus.show(WORKER, name) for name in ("ActiveState", "Result")] == ["inactive", "success"]
    campus.wait(lambda: [one["linked"] for one in workers(campus)] == [False])
    campus.run("systemctl", "start", WORKER)
    campus.wait(lambda: linked(campus))


def test_what_a_restart_cannot_repair_is_not_tried_again(campus: Booted) -> None:
    config = f"{CONFIGS}/worker.toml"
    right = campus.run("cat", config)
    campus.write(config, right.replace("draft.gguf", "none.gguf"))
    campus.run("systemctl", "restart", WORKER, code=1)
    assert [campus.show(WORKER, name) for name in ("ActiveState", "ExecMainStatus")] == ["failed", "66"]
    campus.write(config, right)
    campus.run("systemctl", "restart", WORKER)
    campus.wait(lambda: linked(campus))


def test_uninstalling_leaves_the_state_and_nothing_else(campus: Booted) -> None:
    names = ("edgespec", "cloud-gateway")
    assert any(path.startswith("/var/cache/") for path in campus.written())
    said = [campus.python("-m", name.replace("-", "_"), "uninstall") for name in names]
    assert [f"kept: /var/lib/{name} (" in one for name, one in zip(names, said, strict=True)] == [True, True]
    left = {path for path in campus.written() if any(name in path for name in names)}
    states = tuple(f"/var/lib/private/{name}/" for name in names)
    kept = {path for path in left if path.startswith(states)}
    assert len(kept) > len(names)
    made_here = {f"/etc/systemd/system/{unit}.d/here.conf" for unit in (WORKER, GATEWAY)}
    logs = {f"{LOGS}/{unit}.log" for unit in (WORKER, GATEWAY)}
    assert left - kept == made_here | logs | {f"/var/lib/{name}" for name in names}
    assert campus.run("sh", "-c", "find /run/edgespec /run/private/edgespec -not -type d 2>/dev/null || true") == ""
    for unit in (GATEWAY, WORKER):
        install(campus, unit)
    campus.wait(lambda: linked(campus))  # the pairing was kept


def test_a_users_systemd_runs_the_users_variant(campus: Booted) -> None:
    campus.run("useradd", "-m", OWNER)
    campus.run("install", "-d", "-o", OWNER, "-m", "0700", f"/run/user/{OWNER}")
    settings = [f"User={OWNER}", "Delegate=yes", "Type=notify", f"Environment=XDG_RUNTIME_DIR=/run/user/{OWNER}"]
    campus.run("systemd-run", "--unit=manager", *(part for one in settings for part in ("-p", one)), SYSTEMD, "--user")
    text = "\n".join(["[Service]", *(f"Environment={one}" for one in CODE), ""])
    campus.write(f"/home/{OWNER}/.config/systemd/user/{WORKER}.d/here.conf", text, user=OWNER)
    pair(campus, sys.executable, "-m", "edgespec", user=OWNER)
    campus.python("-m", "edgespec", "install-service", "--user", "--config", f"{CONFIGS}/worker.toml", user=OWNER)
    campus.wait(lambda: linked(campus, OWNER))
    campus.python("-m", "edgespec", "uninstall", "--user", user=OWNER)
    assert campus.show(WORKER, "LoadState", OWNER) == "not-found"
