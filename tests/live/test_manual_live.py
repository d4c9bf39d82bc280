"""Every command that README and the manual show is typed, as it stands there, in folders of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgespec.lab.rig import free_port
from edgespec.shared.models import model_dir
from tests.support.tiny_gguf import make_tiny_gguf
from tools.check.docs import CODE, documents, prose_and_code
from tools.check.wheel.__main__ import commands, verb_path

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
STARTERS = {"cloud-gateway", "cp", "curl", "edgespec", "git", "make", "pip", "pipx", "python", "systemd-run", "uv"}
"""First words of a line in a fenced block that is a command."""
CODE_SHOWN, ADDRESS_SHOWN, PEER_SHOWN = (
    "4821-copper-lantern-otter-7305",
    "wss://gateway.example.edu:7443",
    "192.0.2.8:7444",
)
LIMIT_S = 300.0
HUB, TUNE = "fetches gigabytes from a hub", "takes minutes: `python -m tools.check.wheel --long` runs it"
EXCUSED = {
    "make demo": "takes minutes: test_demo_live.py",
    "make setup-worker && . .venv/bin/activate": "takes minutes: set-up of every test",
    "make setup && . .venv/bin/activate": "takes minutes: set-up of every test",
    "cloud-gateway tune": TUNE,
    "edgespec tune --config gateway.toml --link wss://WORKER-OR-GATEWAY:7443": TUNE,
    "edgespec tune --config gateway.toml --prompts FILE --limit 10 --write": TUNE,
    "edgespec peers pair 4821-copper-lantern-otter-7305": "needs a network with mDNS: test_discovery_networks.py",
    "cloud-gateway link MODEL": "needs edgespec-vllm: integrations/vllm/tests/test_process.py",
}
EXCUSED_BEGINNINGS = {
    "edgespec models fetch bartowski/": HUB,
    "edgespec models fetch Qwen/": HUB,
    "edgespec models check bartowski/": HUB,
    "edgespec models check Qwen/": HUB,
    "systemd-run ": "needs a running systemd: test_systemd_live.py",
    "python -m tools.fuzz.served schemathesis ": "needs schemathesis, which brings 40 packages",
}
EXCUSED_VERBS = {
    ("edgespec", "demo"): "test_demo_live.py",
    ("edgespec", "tune"): TUNE,
    ("cloud-gateway", "tune"): TUNE,
    ("cloud-gateway", "link"): "integrations/vllm/tests/test_process.py",
}
"""Programs and verbs that the text names and that are not run."""


def bare(line: str) -> str:
    """A command without its comment and with single spaces."""
    return " ".join(re.sub(r"\s#.*", "", line).split())


def shown() -> set[str]:
    """The commands in fenced blocks of README and the manual."""
    pages = [page for page in documents(ROOT) if "results" not in page.parts]
    lines = {bare(line) for page in pages for line in prose_and_code(page.read_text())[1]}
    return {line for line in lines if line.split(" ")[0] in STARTERS and " = " not in line}


def verbs_shown() -> set[tuple[str, ...]]:
    """Programs and verbs in the text of README and the manual, fenced or not."""
    pages = [page for page in documents(ROOT) if "results" not in page.parts]
    spans = [one for page in pages for one in CODE.findall(prose_and_code(page.read_text())[0])]
    found = {verb_path(words) for line in [*spans, *shown()] for words in commands(line)}
    return {path for path in found if len(path) > 1}


def excuse(line: str) -> str | None:
    """Why this command is not run here."""
    begun = next((why for begin, why in EXCUSED_BEGINNINGS.items() if line.startswith(begin)), None)
    return EXCUSED.get(line, begun)


@dataclass
class Place:
    """A person's machine: a home folder, in which commands are typed into a shell."""

    folder: Path
    ran: set[str]
    verbs: set[tuple[str, ...]]
    programs: Path
    cwd: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.cwd = self.folder

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"HOME": str(self.folder), "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def note(self, line: str, given: Mapping[str, str]) -> str:
        """The command that is typed for a shown one; `given`: what stands for its examples."""
        self.ran.add(line)
        self.verbs |= set(map(verb_path, commands(line)))
        for example, value in given.items():
            assert example in line
            line = line.replace(example, value)
        return line

    def type(
        self, line: str, given: Mapping[str, str] | None = None, *, more: str = "", code: tuple[int, ...] = (0,)
    ) -> str:
        """Types a shown command, and what it prints; `more` is added to it."""
        typed = f"{self.note(line, given or {})} {more}"
        done = subprocess.run(
            ["bash", "-ec", typed], cwd=self.cwd, env=self.environment, capture_output=True, text=True,
            timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode in code, f"`{typed}` ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, line: str) -> Iterator[Callable[[str], str]]:
        """A shown command that runs meanwhile, and a function that waits until its output matches a pattern."""
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        command = self.note(line, {}).split()
        with log.open("w") as out, subprocess.Popen(
            command, executable=self.programs / command[0], cwd=self.cwd, env=self.environment,
            stdout=out, stderr=out, stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip

            def said(pattern: str) -> str:
                deadline = time.monotonic() + LIMIT_S
                while (found := re.search(pattern, log.read_text())) is None:
                    assert time.monotonic() < deadline and process.poll() is None, f"`{line}` wrote {log.read_text()}"
                    time.sleep(0.05)
                return found[1]

            try:
                yield said
                process.terminate()
                process.wait(LIMIT_S)
            finally:
                process.kill()
        assert process.returncode == 0, f"`{line}` ended with {process.returncode}: {log.read_text()}"

    @contextmanager
    def offering(self, line: str) -> Iterator[str]:
        """A command that shows a code and waits for its use; the code."""
        log, command = self.folder / "offer.log", self.note(line, {}).split()
        with (
            log.open("w") as out,
            subprocess.Popen(
                [self.programs / command[0], *command[1:]], cwd=self.cwd, env=self.environment, stdout=out, stderr=out
            ) as process,
        ):
            try:
                deadline = time.monotonic() + LIMIT_S
                while (found := re.search(r"\b\d+(?:-[a-z]+)+-\d+\b", log.read_text())) is None:
                    assert time.monotonic() < deadline and process.poll() is None, f"`{line}` wrote {log.read_text()}"
                    time.sleep(0.05)
                yield found[0]
                assert process.wait(LIMIT_S) == 0, log.read_text()
            finally:
                process.kill()


def adjusted(text: str, values: Mapping[str, object]) -> str:
    """A printed configuration with other values for some keys, `table.key`."""
    for name, value in values.items():
        table, _, key = name.partition(".")
        pattern = rf"(?ms)^(\[{table}\]$(?:(?!^\[).)*?^{key} = )[^\n]*"
        text, count = re.subn(pattern, lambda found: found[1] + json.dumps(value), text, count=1)  # noqa: B023
        assert count == 1, name
    return text


@dataclass
class Town:
    """All machines, and what was typed on them."""

    folder: Path
    ran: set[str] = field(default_factory=set)
    verbs: set[tuple[str, ...]] = field(default_factory=set)

    def place(self, name: str) -> Place:
        programs = self.folder / "bin"
        if not programs.exists():
            programs.mkdir()
            modules = {"edgespec": " -m edgespec", "cloud-gateway": " -m cloud_gateway", "python": ""}
            for program, module in modules.items():
                (programs / program).write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
                (programs / program).chmod(0o755)
        return Place(self.folder / name, self.ran, self.verbs, programs)


@pytest.fixture
def town(short_folder: Path) -> Town:
    return Town(short_folder)


def configure(place: Place, role: str, values: Mapping[str, object], file: Path | None = None) -> None:
    """The printed configuration with these values, in the usual place or in the file that a page redirects it to."""
    program = "edgespec" if role == "worker" else "cloud-gateway"
    file = file or place.folder / f".config/edgespec/{role}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = place.type(f"{program} config > {role}.toml") or (place.cwd / f"{role}.toml").read_text()
    file.write_text(adjusted(text, values))


def test_every_command_of_readme_and_manual_runs(town: Town, quantised_model: Path) -> None:
    operator, admin, peer = map(town.place, ("operator", "admin", "peer"))
    target, draft = (make_tiny_gguf(town.folder / f"{n}.gguf", unlike=n) for n in (0.0, 0.05))
    gateway = {"target.model": str(target), "target.context": 512, "target.threads": 1, "local_draft.model": ""}
    gateway["api.model_alias"] = ["SmolLM2-135M-Instruct.Q4_1"]  # the model of the page's example
    gateway |= {"link.host": "127.0.0.1", "link.mdns": False, "api.port": 0, "link.port": 0, "metrics.port": 0}
    worker: dict[str, object] = {
        "draft.model": str(draft),
        "draft.context": 1024,
        "draft.threads": 1,
        "owner.mode": "always",
    }
    worker |= {"gateway.discover": False, "daemon.name": "lab-7"}
    configure(operator, "gateway", gateway)
    with operator.running("cloud-gateway serve") as said:
        address = said(r"workers +(wss://\S+)")
        readme(operator, admin, worker | {"gateway.address": address}, said(r"API +(http://\S+)/v1"))
    configure(operator, "gateway", gateway, operator.folder / "gateway.toml")
    with operator.running("cloud-gateway serve --config gateway.toml") as said:
        address, api = said(r"workers +(wss://\S+)"), said(r"API +(http://\S+)/v1")
        pages(operator, admin, peer, worker | {"gateway.address": address})
        survey(operator, api, said(r"serves (\S+)"))
    on_traces(admin)
    besides(operator, admin)
    faults = sorted(f"neither run nor excused: {line}" for line in shown() - town.ran if excuse(line) is None)
    faults += sorted(f"run, and shown nowhere: {line}" for line in town.ran - shown() if line not in BESIDES)
    faults += sorted(f"excused, and shown nowhere: {line}" for line in EXCUSED.keys() - shown())
    faults += sorted(
        f"named, and not run: {' '.join(one)}" for one in verbs_shown() - town.verbs - EXCUSED_VERBS.keys()
    )
    assert faults == []


def readme(operator: Place, admin: Place, worker: Mapping[str, object], api: str) -> None:
    """What README shows, in its order."""
    operator.type("git clone <this repository> edgespec && cd edgespec", {"<this repository>": str(ROOT)})
    for place in (operator, admin):
        place.type("edgespec models fetch auto:quantised")
    configure(admin, "worker", worker)
    key = re.findall(r"es-\S+", operator.type("cloud-gateway keys create --name alice --offload"))[-1]
    with operator.offering("cloud-gateway pair") as code:
        admin.type(f"edgespec pair {CODE_SHOWN}", {CODE_SHOWN: code})
    with admin.running("edgespec run"):
        linked(operator, "lab-7")
        example(operator, api, key)
        assert "lab-7" in operator.type("cloud-gateway workers list")
        assert "assigned" in operator.type("cloud-gateway audit --since 24h")
        admin.type("edgespec doctor", code=(0, 66, 75))
    admin.type("edgespec install-service --user", more="--dry-run")
    operator.type("cloud-gateway install-service", more="--dry-run")


def example(operator: Place, api: str, key: str) -> None:
    """The program and the `curl` of docs/api.md."""
    page = (ROOT / "docs/api.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (stream,) = re.findall(r"```\n(curl .*?)```", page, re.DOTALL)
    operator.note(bare(stream.splitlines()[0]), {})
    for command, printed in (
        ([sys.executable, "-c", program], "completion_tokens"),
        (["bash", "-c", stream], "[DONE]"),
    ):
        command[-1] = command[-1].replace("http://127.0.0.1:8080", api).replace("es-...", key)
        done = subprocess.run(
            command, env=operator.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0 and printed in done.stdout, done.stdout + done.stderr


def linked(operator: Place, name: str) -> None:
    """Waits until the gateway lists the worker as linked."""
    deadline = time.monotonic() + LIMIT_S
    while not re.search(rf"{name}\b.*\blinked", operator.type("cloud-gateway workers list")):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def pages(operator: Place, admin: Place, peer: Place, worker: dict[str, object]) -> None:
    """What the pages of gateway and worker show."""
    operator.type("cloud-gateway keys create --name alice")
    made = operator.type("cloud-gateway keys create --name chemistry-bot --offload chemistry trusted")
    operator.type("cloud-gateway keys list")
    operator.type("cloud-gateway keys revoke 3kTq9XwZ", {"3kTq9XwZ": re.findall(r"es-([^-\s]+)-", made)[-1]})
    address, port = str(worker["gateway.address"]), free_port()
    offer = {"peers.listen": True, "peers.host": "127.0.0.1", "peers.port": port, "peers.discover": False}
    configure(admin, "worker", worker | offer | {"relay.offer": True}, admin.folder / "worker.toml")
    configure(peer, "worker", worker | {"peers.discover": False, "daemon.name": "lab-8"})
    with operator.offering("cloud-gateway pair --group chemistry") as code:
        known = {ADDRESS_SHOWN: address, CODE_SHOWN: code}
        admin.type(f"edgespec pair {ADDRESS_SHOWN} {CODE_SHOWN}", known)
    with admin.running("edgespec run --config worker.toml"):
        linked(operator, "lab-7")
        for line in ("edgespec status", 'edgespec pause --reason "exam week"', "edgespec resume"):
            admin.type(line)
        with admin.offering("edgespec peers invite") as code:
            known = {PEER_SHOWN: f"127.0.0.1:{port}", CODE_SHOWN: code}
            peer.type(f"edgespec peers pair {PEER_SHOWN} {CODE_SHOWN}", known)
        admin.type("edgespec peers")
        with operator.offering("cloud-gateway pair") as code:
            peer.type(f"edgespec pair --relay {CODE_SHOWN}", {CODE_SHOWN: code})
        peer.type("edgespec peers forget ID", {"ID": "lab-7"})
        operator.type("cloud-gateway status")
        operator.type("cloud-gateway workers group lab-7 chemistry trusted")
        operator.type("cloud-gateway workers expire lab-7 90d")
        operator.type("cloud-gateway workers release lab-7", code=(77,))
    (row,) = re.findall(r"^.*\blab-8\b.*$", operator.type("cloud-gateway workers list"), re.MULTILINE)
    operator.type("cloud-gateway workers revoke 4f2a", {"4f2a": re.findall(r"\b[0-9a-f]{4,16}\b", row)[0]})
    operator.type("cloud-gateway identity rotate")


def survey(operator: Place, api: str, model: str) -> None:
    """What docs/survey.md shows, in the clone."""
    operator.cwd = operator.folder / "edgespec"
    operator.type("cp tools/survey/survey.toml .")
    file = operator.cwd / "survey.toml"
    values = {"http://127.0.0.1:8080": api, "SmolLM2-135M-Instruct.Q4_1": model, "interval_s = 60": "interval_s = 0.5"}
    text = file.read_text()
    for before, value in {**values, 'api_key_env = ""': 'api_key_env = "KEY"'}.items():
        assert before in text
        text = text.replace(before, value)
    file.write_text(text)
    key = re.findall(r"es-\S+", operator.type("cloud-gateway keys create --name alice"))[-1]
    line = "python -m tools.survey --config survey.toml --out week.jsonl --duration-h 168"
    operator.type(line, {"168": "0.001", "python": f"KEY={key} python"})
    operator.type("python -m tools.survey report week.jsonl --timezone Europe/London")
    operator.cwd = operator.folder


def on_traces(admin: Place) -> None:
    """What docs/traces.md shows, in the checkout."""
    admin.cwd = ROOT
    one = "edgespec replay tests/traces/wanspec-20ms.trace"
    admin.type(one)
    admin.type("edgespec replay tests/traces/*.trace")
    picture = admin.folder / "picture.html"
    admin.type(f"{one} --html picture.html", {"picture.html": str(picture)})
    assert "<canvas" in picture.read_text()
    admin.type(f"{one} --policy wanspec --policy adaptive --policy plain")
    admin.type(f"{one} --k 1 --k 4 --phi 0.5 --phi 3 --rtt-ms 5 --rtt-ms 100 --json")
    admin.cwd = admin.folder


BESIDES: Mapping[str, tuple[int, ...]] = {
    "edgespec status": (0, 71),
    'edgespec pause --reason "exam week"': (0,),
    "edgespec resume": (0,),
    "cloud-gateway status": (0,),
    "cloud-gateway version": (0,),
    "edgespec version": (0,),
    "edgespec models list": (0,),
    "edgespec models make --format q4_0": (0,),
    "edgespec models check auto:quantised": (0,),
    "edgespec keys rotate": (0,),
    "edgespec unpair campus": (0, 77),
    "edgespec uninstall --user": (78,),
    "cloud-gateway uninstall --user": (78,),
}
"""Commands that stand in the text, and their exit codes once the daemons have ended."""


def besides(operator: Place, admin: Place) -> None:
    """What only the text names."""
    assert model_dir().is_dir()
    for line, code in BESIDES.items():
        place = operator if line.startswith("cloud") else admin
        if line not in place.ran:
            place.type(line, code=code)
