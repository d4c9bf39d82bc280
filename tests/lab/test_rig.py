"""The rig: processes of a whole system on one machine, and its questions."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgespec.llamacpp.drafter import Drafter
from edgespec_lab.rig import Processes, RigError, cpu_time_s
from edgespec_lab.rig.chat import ChatClient, greedy
from edgespec_lab.rig.neighbour import PROMPT, Drafting, Neighbour
from tests.support.tiny_gguf import make_tiny_gguf

WAIT_S = 20.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_leaving_the_block_ends_every_process_in_its_order(tmp_path: Path) -> None:
    note = tmp_path / "order"
    code = "import signal, sys\ndef end(*_):\n open(sys.argv[1], 'a').write(sys.argv[2]); sys.exit()\n"
    code += "signal.signal(signal.SIGTERM, end); print(flush=True); signal.pause()"
    with Processes(tmp_path, last=("gateway",)) as processes:
        for name in ("gateway", "worker"):
            processes.start(name, [*python(code), str(note), name[0]], piped=True)
            processes.line(name)
        pids = processes.pids()
    assert note.read_text() == "wg" and all(map(gone, pids))


def test_a_process_that_ends_early_is_named_with_its_last_lines(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("gateway", python("import time; print('waiting', flush=True); time.sleep(60)"), piped=True)
        processes.line("gateway")
        processes.start("worker", python("raise SystemExit('no model here')"), piped=True)
        with pytest.raises(RigError, match=r"(?s)The worker .*no model here"):
            processes.line("worker")
        until(lambda: not processes.runs("worker"))
        with pytest.raises(RigError, match="The worker .*ended early"):
            processes.wait_for("gateway", lambda: False, 0.0)  # it only waits for the worker
        processes.stop("worker")
        with pytest.raises(RigError, match="The gateway did not get ready"):
            processes.wait_for("gateway", lambda: False, 0.0)
        crash = "import faulthandler, os; faulthandler.enable(); os.abort(" + "".join(["\n"] * 12) + ")"
        processes.start("worker", python(crash))
        until(lambda: not processes.runs("worker"))
        with pytest.raises(RigError, match=r"(?s)The worker was killed by SIGABRT.*wrote:\nFatal Python error"):
            processes.wait_for("gateway", lambda: False, 0.0)


def test_a_neighbour_drafts_only_while_it_is_asked_to(tmp_path: Path) -> None:
    with Neighbour(tmp_path, str(make_tiny_gguf(tmp_path / "tiny.gguf")), None) as neighbour:
        with neighbour.drafting():
            before = cpu_time_s(neighbour.pids())
            until(lambda: cpu_time_s(neighbour.pids()) > before + 0.05)
        assert neighbour.steps > 0
        (pid,) = neighbour.pids()
        resting = cpu_time_s([pid])
        time.sleep(0.2)
        assert cpu_time_s([pid]) - resting < 0.05
    assert gone(pid)


def test_a_neighbour_begins_again_before_its_context_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec_lab.rig.neighbour.CONTEXT", PROMPT + 8)
    drafting = Drafting(Drafter(make_tiny_gguf(tmp_path / "tiny.gguf"), context=PROMPT + 16, sequences=4))
    thread = threading.Thread(target=drafting.run, args=[time.monotonic() + WAIT_S])
    drafting.active.set()
    thread.start()
    for goal in (15, 30, 100):  # it rests in between, with a request half-way
        until(lambda: drafting.steps > goal or not thread.is_alive())  # noqa: B023
        drafting.active.clear()
        until(lambda: drafting.resting.is_set() or not thread.is_alive())
        drafting.active.set()
    assert thread.is_alive()
    drafting.ended = True
    thread.join(WAIT_S)


class Completions(BaseHTTPRequestHandler):
    seen: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012  one server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, body))
        answer = json.dumps({"choices": [{"text": " a lighthouse"}], "usage": {}})
        self.send_response(200)
        self.end_headers()
        self.wfile.write((f"data: {answer}\n" if body.get("stream") else answer).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def client() -> Any:
    server = HTTPServer(("127.0.0.1", 0), Completions)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield ChatClient(server.server_port, "m", "k", text=True)
    server.shutdown()
    server.server_close()


def test_a_model_without_a_template_is_asked_for_text_completions(client: ChatClient) -> None:
    whole = client.complete(greedy("Once upon", 5, {}))
    (chunk,) = client.chunks(greedy("Once upon", 5, {}))
    assert whole["choices"][0]["message"]["content"] == chunk["choices"][0]["delta"]["content"] == " a lighthouse"
    for path, body in Completions.seen:
        assert path == "/v1/completions" and body["prompt"] == "Once upon" and "messages" not in body
