"""Both daemons as processes: what they print and answer while they load, and how a closed terminal ends them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from edgespec.core.errors import AddressError
from edgespec.shared import control_client as control
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec_lab.rig import module
from tests.live.test_gateway_live import ENDLESS, gateway
from tests.support.busy import busy_loops
from tests.support.links import GATEWAY_KEY
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.until import until

pytestmark = pytest.mark.live
LOAD_S = 120.0


class Terminal:
    """A process in a session and a terminal of its own."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._ours, theirs = pty.openpty()
        os.set_blocking(self._ours, False)
        # Tests that run under `nohup` would hand the ignored SIGHUP on, which a daemon respects.
        command = ["env", "--default-signal=HUP", "setsid", "--ctty", *argv]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self._text = b""

    def text(self) -> str:
        """Its output so far."""
        with suppress(BlockingIOError):
            while data := os.read(self._ours, 65536):
                self._text += data
        return self._text.decode(errors="replace")

    def close(self) -> None:
        """The kernel sends SIGHUP, and every write fails."""
        os.close(self._ours)


@contextmanager
def in_terminal(argv: Sequence[str]) -> Iterator[Terminal]:
    terminal = Terminal(argv)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()


@contextmanager
def socket_of_systemd(path: Path) -> Iterator[socket.socket]:
    """The receiver of notifications; reading waits for ten seconds at most."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(10)
        yield systemd


def paired_worker(folder: Path) -> Path:
    """The configuration of a worker that is paired with a gateway that never answers."""
    store = KeyStore(folder / "state")
    model = make_tiny_gguf(folder / "tiny.gguf")
    PairedGateways(store.folder).add(GATEWAY_KEY.public, b"s" * 32, "gw", "127.0.0.1:9", 1)
    path = folder / "worker.toml"
    path.write_text(
        f'[draft]\nmodel = "{model}"\nthreads = 1\n[gateway]\ndiscover = false\n[owner]\nmode = "always"\n'
        f'[daemon]\nstate_dir = "{folder}/state"\n'
    )
    return path


async def test_a_worker_answers_while_it_loads(tmp_path: Path) -> None:
    config = paired_worker(tmp_path)
    control_socket = tmp_path / "state" / "worker.sock"
    with in_terminal([*module("edgespec"), "run", "--config", str(config)]) as terminal:
        await until(control_socket.exists)
        terminal.process.send_signal(signal.SIGSTOP)  # else the tiny model might be loaded before it is asked
        asked = [
            asyncio.ensure_future(asyncio.to_thread(control.call, control_socket, method, timeout_s=LOAD_S))
            for method in ("status", "pause")
        ]
        await asyncio.sleep(0.2)
        terminal.process.send_signal(signal.SIGCONT)
        assert (await asked[0])["state"] == "starting"
        with pytest.raises(AddressError, match="still starting"):
            await asked[1]
        await until(lambda: "ready after" in terminal.text(), LOAD_S)
        text = terminal.text()
        assert text.index("starts") < text.index("checking and loading the draft model") < text.index("ready after")
        assert (await asyncio.to_thread(control.call, control_socket, "status"))["linked"] is False
        terminal.close()
        assert await asyncio.to_thread(terminal.process.wait, LOAD_S) == 0
        assert not control_socket.exists()


async def test_a_worker_is_ready_within_ten_seconds_beside_busy_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = paired_worker(tmp_path)
    with socket_of_systemd(tmp_path / "systemd") as systemd, busy_loops():
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "systemd"))
        began = time.monotonic()
        with in_terminal([*module("edgespec"), "run", "--config", str(config)]):
            await until(lambda: b"READY=1" in systemd.recv(4096), 10)
            assert time.monotonic() - began < 10


def test_closing_the_gateways_terminal_cuts_no_stream(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        running.end()  # only its files are of use here
        ready = tmp_path / "ready.json"
        options = ["--config", str(tmp_path / "gateway.toml"), "--ready-file", str(ready)]
        with in_terminal([*module("cloud_gateway"), "serve", *options]) as terminal:
            asyncio.run(until(lambda: terminal.text() and ready.exists(), LOAD_S))
            assert "checking and loading the target" in terminal.text()
            key = json.loads(running.command("keys", "create", "--json"))["key"]
            ask = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 400}
            with running.client(key) as client:
                stream = client.chat.completions.create(**ask, stream=True, extra_body=ENDLESS)
                first = next(stream)
                terminal.close()
                time.sleep(0.2)  # two signals at once are one
                terminal.process.send_signal(signal.SIGHUP)  # a shell sends its own besides the kernel's
                rest = list(stream)
            assert first.choices and len(rest) > 1 and rest[-1].choices[0].finish_reason == "length"
            assert terminal.process.wait(LOAD_S) == 0
        assert not ready.exists()


@pytest.mark.claim("an-open-api-is-warned-of")
def test_a_gateway_with_an_open_api_warns_and_prints_where_it_is(tmp_path: Path) -> None:
    moved = "--set", f"daemon.state_dir={tmp_path}/moved"
    with gateway(tmp_path, "--set", "api.host=0.0.0.0", *moved) as running:
        running.wait_ready()
        assert f"socket {tmp_path}/state/gateway.sock" in running.command("status", code=71)
        assert json.loads(running.command("status", "--json", *moved))["state"] == "serving"
        _, out, err = running.end()
    assert "`api.host` is 0.0.0.0: API keys and prompts cross the network unencrypted" in err
    assert "127.0.0.1" not in out.splitlines()[0]
