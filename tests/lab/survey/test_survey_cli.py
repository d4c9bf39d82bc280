"""`python -m edgespec_lab.survey`: as a process against local endpoints, and one sentence for every mistake."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from edgespec_lab.survey.__main__ import main
from edgespec_lab.survey.sample import read
from tests.support.until import until
from tools.doubles.chat_endpoint import ChatEndpoint, Reply, serving

SECRET = "sk-very-secret"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configuration(folder: Path, *servers: ChatEndpoint, key: str = "") -> Path:
    text = "[schedule]\ninterval_s = 1.0\n" + "".join(  # a test that stood still for 2 s still finds it running
        f'[[endpoints]]\nname = "e{n}"\nmodel = "m"\nbase_url = "{one.base_url}"\napi_key_env = "{key}"\n'
        for n, one in enumerate(servers)
    )
    path = folder / "survey.toml"
    path.write_text(text)
    return path


async def started(*argv: str, **variables: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "edgespec_lab.survey", *argv]
    there = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=there)


async def test_three_endpoints_are_surveyed_interrupted_continued_and_reported(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [ChatEndpoint(lambda: Reply(wait_s=0.02)) for _ in range(2)] + [ChatEndpoint(lambda: Reply(status=500))]
    async with serving(*servers):
        config = configuration(home, *servers, key="MY_KEY")
        out = home / "s.jsonl"
        command = ["--config", str(config), "--out", str(out), "--count", "2"]
        process = await started(*command, MY_KEY=SECRET)
        await until(lambda: out.exists() and len(read([out])) >= 3, timeout_s=30)
        process.send_signal(signal.SIGINT)
        shown = await process.communicate()
        assert process.returncode == 128 + signal.SIGINT
        assert b"Interrupted: the same command continues." in shown[0]
        before = len(read([out]))
        assert before < 6
        process = await started(*command, "--json", MY_KEY=SECRET)
        printed, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")
    answer = json.loads(printed)
    assert answer["samples"] == 6 - before
    assert len(read([out])) == 6
    for text in (*shown, printed, out.read_bytes()):
        assert SECRET.encode() not in text
        assert b"Count from" not in text
    assert main(["report", str(out), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [one["failure_rate"] for one in figures["endpoints"]] == [0.0, 0.0, 1.0]
    assert [Path(path).name for path in figures["plots"]] == ["s-heatmap.png"]
