"""The commands of `tools`: a failure is one sentence and its exit status."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgespec.core.errors import ConfigError, EdgespecError
from tools import results, verbs
from tools.lossless import random_worker


@pytest.mark.parametrize(
    ("main", "arguments", "error", "words"),
    [
        (results.main, ["none.json"], ConfigError, "none.json cannot be taken"),
        (random_worker.main, ["--config", "none.toml"], ConfigError, "none.toml"),
    ],
)
def test_a_failure_of_a_command_is_one_sentence_and_its_status(
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    error: type[EdgespecError],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == error.exit_code
    said = capsys.readouterr().err
    assert said.startswith("error: ") and words in said and said.count("\n") == 1


def test_a_command_that_is_terminated_still_ends_what_it_started() -> None:
    ended = []

    def work(_: argparse.Namespace) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            return 0
        finally:
            ended.append("its processes")

    def ours(*_: object) -> None:
        """In place of the system's, which would end the tests."""

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=work)
    before = signal.signal(signal.SIGTERM, ours)
    try:
        with pytest.raises(SystemExit) as caught:
            verbs.run(parser, [])
        assert caught.value.code == 128 + signal.SIGTERM and ended
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)


ENDED = """
import argparse, sys, time
from pathlib import Path
from edgespec.lab.rig import Processes, processes
from tools import verbs

processes.END_S = 0.3
CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"

def work(_):
    with Processes(Path(sys.argv[1])) as running:
        for name in ("one", "other"):
            running.start(name, [sys.executable, "-c", CHILD], piped=True)
            running.line(name)
        print(*running.pids(), flush=True)
        time.sleep(60)

parser = argparse.ArgumentParser()
parser.set_defaults(run=work)
verbs.run(parser, [])
"""


def test_one_that_is_terminated_again_and_again_leaves_no_process(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ENDED, str(tmp_path)], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pids = program.stdout.readline().split()
        deadline = time.monotonic() + 20
        while program.poll() is None and time.monotonic() < deadline:
            program.terminate()
            time.sleep(0.01)
        assert program.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)  # the latter: by one that came afterwards
    assert len(pids) == 2 and not any(Path("/proc", pid.decode()).exists() for pid in pids)
