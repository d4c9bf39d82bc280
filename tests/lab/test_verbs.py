"""The commands of `tools`: a failure is one sentence and its exit status."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgespec.core.errors import ConfigError, EdgespecError
from edgespec_lab import verbs
from tools import results
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
