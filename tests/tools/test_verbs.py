"""The commands of `tools`: a failure is one sentence and its exit status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgespec.core.errors import ConfigError, EdgespecError, ModelError
from tools import make_draft, make_target, results
from tools.lossless import random_worker


@pytest.mark.parametrize(
    ("main", "arguments", "error", "words"),
    [
        (make_draft.main, [], ConfigError, "give --drop, --format, or both"),
        (make_target.main, ["--source", "none.gguf", "--out", "."], ModelError, "none.gguf"),
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
