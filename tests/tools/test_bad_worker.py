"""A worker that misbehaves on purpose does so only once it has measured its steps honestly."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.llamacpp.drafter import Drafter
from tests.support.tiny_gguf import make_tiny_gguf
from tools import bad_worker
from tools.bad_worker import BadDrafter

PROMPT = list(range(8, 30))


@pytest.fixture
def drafter(tmp_path: Path) -> Drafter:
    return Drafter(make_tiny_gguf(tmp_path / "tiny.gguf"), context=256)


def bad(drafter: Drafter, case: str) -> BadDrafter:
    made = BadDrafter(drafter, case)
    made.open("r", PROMPT)
    made.step("r", [()], 1)
    made.bad = True
    return made


def test_wrong_tokens_are_never_those_of_the_draft(drafter: Drafter) -> None:
    worker = bad(drafter, "wrong")
    (wrong,) = worker.step("r", [()], 4)
    (right,) = drafter.step("r", [()], 4)
    assert not set(wrong.tokens) & set(right.tokens) and len(set(wrong.tokens)) == 4
    assert list(wrong.costs) == list(right.costs)
    worker.step("r", [(wrong.tokens[0],)], 1)  # it drafts on from there


def test_a_stalling_worker_is_silent_once_after_its_first_step(
    drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[float]()
    monkeypatch.setattr(bad_worker.time, "sleep", slept.append)
    worker = bad(drafter, "stalls")
    worker.step("r", [()], 1)
    assert slept == []
    worker.step("r", [()], 1)
    assert slept == [bad_worker.STALL_S]
