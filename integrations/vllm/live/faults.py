"""`python -m integrations.vllm.live.faults VENV`: faults of the board beside a served vLLM, a line each.

Run as root, in edgespec's environment; `VENV` is what `make vllm` made. The link process runs as a user of its own, as
in two containers of different users that share a volume. Exit status 1 if a text differs from that without a worker, a
completion takes longer than its bound, or drafts do not return. The first line is without a fault: if that is wrong,
the machine is too busy or the installation is at fault, and no row is run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.shared.models import resolve_model
from edgespec_lab.rig.processes import Processes, RigError
from integrations.vllm.live.served import INTEGRATION, LinkRig, Server, variables

LINK_USER = 20_001
GROUP = 20_003
PROMPT = "Explain how a bicycle stays upright."
TOKENS = 64
STALL_S = 20.0
"""Beyond twice the time of the completion without a worker: vLLM does not wait for the board, and machines are busy."""
RETURN_S = 60.0
"""Until drafts are accepted again after a fault: the worker dials again, and vLLM's line tries again."""


@dataclass
class OtherUser(LinkRig):
    """A link process of LINK_USER, whose board is on a volume that it shares with vLLM."""

    volume: Path = Path()

    @property
    def board(self) -> Path:
        """The socket."""
        return self.volume / "board.sock"

    def _link_config(self) -> dict[str, Any]:
        return super()._link_config() | {"daemon.state_dir": str(self.volume.with_name("state"))}

    def start(self, name: str, command: Sequence[str], core: int | None = None, *, piped: bool = False) -> None:
        """The link process as LINK_USER, every other one as it is."""
        if name == "gateway":
            # It may read the interpreter's files wherever they are, and write nothing but its own.
            user = ["setpriv", f"--reuid={LINK_USER}", f"--regid={LINK_USER}", f"--groups={GROUP}"]
            reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
            command = [*user, *reading, *command, "--board", str(self.board), "--board-group", str(GROUP)]
        super().start(name, command, core, piped=piped)


@dataclass
class Scene:
    """vLLM, the link process and a worker."""

    server: Server
    rig: OtherUser
    expected: str
    alone_s: float
    """Seconds of the completion without a worker."""

    def completion(self) -> None:
        """Raises AssertionError if the text differs or vLLM waited."""
        began = time.monotonic()
        text = self.server.complete(PROMPT, TOKENS)
        took_s = time.monotonic() - began
        assert text == self.expected, "the text differs"
        assert took_s < 2 * self.alone_s + STALL_S, f"the completion took {took_s:.1f} s, alone {self.alone_s:.1f} s"

    def drafts_return(self) -> float:
        """Seconds until drafts are accepted. Raises AssertionError."""
        began = time.monotonic()
        while time.monotonic() < began + RETURN_S:
            before = self.server.counts().accepted
            self.completion()
            if self.server.counts().accepted > before:
                return time.monotonic() - began
        status = self.rig.gateway_command("status", "--json")
        shown = ", ".join(f"{name} {status[name]}" for name in ("engines", "workers_linked", "drafted", "accepted"))
        raise AssertionError(f"no draft was accepted within {RETURN_S:.0f} s; the link process: {shown}")


def two_users(scene: Scene) -> None:
    """Two containers of different users: the socket is the group's, and vLLM runs as another user."""
    status = scene.rig.board.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (LINK_USER, GROUP, 0o660), status
    assert f"of user {os.geteuid()} is connected" in scene.rig.log("gateway")


def killed_in_a_step(scene: Scene) -> None:
    """The board is killed while vLLM computes a step."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(scene.completion)
        time.sleep(min(1.0, scene.alone_s / 3))
        assert not running.done(), "the completion ended before the fault"
        scene.rig.stop("gateway", signal.SIGKILL)
        running.result()
    scene.rig.start_gateway()
    scene.rig.wait_linked()


def frozen(scene: Scene) -> None:
    """The link process is frozen for six seconds: vLLM's writes are taken by nobody."""
    process = scene.rig.pid("gateway")
    os.kill(process, signal.SIGSTOP)
    scene.completion()
    time.sleep(6.0)
    os.kill(process, signal.SIGCONT)
    scene.rig.wait_linked()


ROWS: dict[str, Callable[[Scene], None]] = {
    "two containers of different users": two_users,
    "board killed in a step": killed_in_a_step,
    "board frozen for 6 s": frozen,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m integrations.vllm.live.faults", description=__doc__)
    parser.add_argument("venv", type=Path, help="what `make vllm` made")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep logs and state there")
    options = parser.parse_args(argv)
    venv = options.venv.resolve()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.chmod(0o755)
        for part in ("volume", "state"):
            (folder / part).mkdir(mode=0o750 if part == "volume" else 0o700)
            shutil.chown(folder / part, LINK_USER, GROUP)
        os.environ["PYTHONPATH"] = f"{INTEGRATION.parents[1]}:{INTEGRATION}"  # the link process imports edgespec_vllm
        draft = str(resolve_model("auto:quantised"))
        target = str(venv / "smol")
        rig = OtherUser(folder / "rig", target, draft, None, rtt_ms=5.0, cores=(None, 1), volume=folder / "volume")
        environment = variables(venv, folder)
        environment |= {"EDGESPEC_BOARD": str(rig.board), "EDGESPEC_BOARD_USER": str(LINK_USER)}
        with rig, Processes(folder, environment=environment) as processes:
            for step in (rig.start_gateway, rig.start_proxy, rig.pair, rig.start_worker):
                step()
            with Server(venv, processes, rig.board).running() as server:
                server.complete(PROMPT, 8, "no consent")
                began = time.monotonic()
                expected = server.complete(PROMPT, TOKENS, "no consent")
                scene = Scene(server, rig, expected, time.monotonic() - began)
                # A row shows nothing on a machine that is too busy for drafts when nothing is at fault.
                if failed("no fault", lambda _: None, scene):
                    return 1
                for title, inject in ROWS.items():
                    wrong += failed(title, inject, scene)
    if wrong:
        return 1

    return 0


def failed(title: str, inject: Callable[[Scene], None], scene: Scene) -> bool:
    """Runs one row and prints its line; whether it failed."""
    try:
        inject(scene)
        said = f"texts equal, drafts accepted after {scene.drafts_return():.1f} s"
    except (AssertionError, RigError, OSError) as error:
        print(f"{title}: WRONG: {str(error)[:400]}", flush=True)
        return True
    print(f"{title}: {said}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
