"""The link process as a whole: its board, its control socket, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from edgespec_vllm.board import Board, Terms
from edgespec_vllm.line import Line
from edgespec_vllm.link.process import LinkProcess
from websockets.asyncio.client import connect

from cloud_gateway.__main__ import main
from cloud_gateway.process import views
from cloud_gateway.process.config import DaemonSection, GatewaySettings, LinkSection
from edgespec.shared import control_client as control
from edgespec.shared.starting import Starting
from integrations.vllm.tests.boards import DRAFTS
from tests.support.until import until

WORDS = {"a": 0, "b": 1, "c": 2}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": WORDS, "merges": []}}))
    return tmp_path


async def test_the_process_serves_engines_workers_and_commands(model: Path) -> None:
    state = model / "state"
    link = LinkSection(host="127.0.0.1", port=0)
    settings = GatewaySettings(link=link, daemon=DaemonSection(state_dir=str(state)))
    process = LinkProcess(settings, model, Starting("test"))
    running = asyncio.ensure_future(process.run())
    board = Board(Line(str(state / "board.sock")), 0, len(WORDS), DRAFTS)
    for now in range(0, 4000, 40):
        await asyncio.sleep(0.05)
        board.send(now)
        if process.board.engines:
            break
    board.open("a", [1, 2], Terms(["default"]))
    board.send(4000)
    await until(lambda: process.streams.open == 1)
    process.streams.drafted = 7
    process.streams.accepted = 5
    found = await asyncio.to_thread(control.call, state / "gateway.sock", "status")
    assert (found["state"], found["engines"], found["workers_linked"]) == ("link", 1, 0)
    assert found["board"] == str(state / "board.sock")
    assert f"1 at {state / 'board.sock'}" in views.text(found) and "0 linked, 0 paused" in views.text(found)
    assert "1 open to workers, 0 of them with one" in views.text(found) and "5 of 7 were accepted" in views.text(found)
    assert (state / "board.sock").stat().st_mode & 0o777 == 0o600
    assert await asyncio.to_thread(control.call, state / "gateway.sock", "workers") == {"workers": []}
    assert await asyncio.to_thread(control.call, state / "gateway.sock", "keys") == {"keys": []}
    with pytest.raises(Exception, match="CERTIFICATE"):  # TLS with a key that workers know from pairing
        await connect(process.port.url + "/link")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 30)
    assert not (state / "board.sock").exists()
    board.receive()
    assert not board.line.up


def test_the_verb_names_the_package_that_it_needs(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "edgespec_vllm.link.process", None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(model))
    assert main(["link", str(model)]) != 0
    assert "edgespec-vllm" in capsys.readouterr().err
