"""The parts of `tools.lossless matrix` that need no model; tests/live/test_matrix.py runs it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.protocol.messages import Open, Sampling, check_tree_shape
from tools.lossless import __main__ as command
from tools.lossless import matrix
from tools.lossless.conditions import CONDITIONS, Answer, Case, Cut, stream
from tools.lossless.random_worker import Request

VOCAB = 500
PROMPT = list(range(40, 60))


def piece(text: str) -> dict[str, Any]:
    return {"index": 0, "delta": {"content": text}, "finish_reason": "stop" if text == "four" else None}


class Canned:
    """A stage that streams what it was given."""

    def __init__(self, chunks: list[dict[str, Any]]) -> None:
        self._chunks = chunks

    def chunks(self, body: Any) -> Iterator[dict[str, Any]]:
        yield from self._chunks


class NoStage:
    """Stands where rows are made of answers that are there already."""


def answer(text: str, *, frames: int = 0, verified: int = 0, accepted: int = 0, after: int = 0) -> Answer:
    extension: dict[str, Any] = {
        "rounds": 5,
        "frames": {"used": frames, "rejected": 0},
        "drafted": {"worker": verified},
        "accepted": {"worker": accepted},
    }
    return Answer([(text, "length")], {"completion_tokens": 10, "edgespec": extension}, after)


@pytest.mark.parametrize("seed", range(30))
def test_random_trees_are_valid_in_shape_and_taken_in_as_candidates(seed: int) -> None:
    rng = random.Random(seed)
    request = Request(Open(1, 1, len(PROMPT), PROMPT, Sampling()))
    tree = CandidateTree(PROMPT)
    for _ in range(5):
        frame = request.nonsense(rng, VOCAB)
        check_tree_shape(frame, VOCAB)
        merged = tree.merge("source", frame, "worker")  # raises for wrong ids and for depth
        assert merged.prefix and merged.fresh > 0
        tree.advance([7])
        request.prefix.extend([7])


def test_the_worker_is_killed_once_when_the_first_answer_is_half_there() -> None:
    kills: list[str] = []
    cut = Cut(lambda: kills.append("killed"))
    chunks = [{"choices": [piece(text)]} for text in ("", "two", "four")]
    chunks.append({"choices": [], "usage": answer("").usage})
    for expected in (4, 7):  # the second stream would have it killed later, or again
        found = stream(Canned(chunks), Case("sampled", "a", {}), cut, when=3)  # type: ignore[arg-type]
        assert kills == ["killed"] and found.after_kill == expected
        assert found.choices == [("twofour", "stop")]


def test_a_completion_counts_only_where_its_condition_was_applied() -> None:
    assert answer("abcd").exercised("none") and not answer("abcd", frames=1).exercised("none")
    assert answer("abcd", frames=2, verified=3, accepted=1).exercised("worker")
    assert not answer("abcd", frames=2, verified=3).exercised("two")
    assert answer("abcd", frames=2, verified=3, after=2).exercised("killed")
    assert not answer("abcd", after=2).exercised("killed"), "no frame was used before"
    assert not answer("abcd", frames=2, verified=3, after=0).exercised("killed"), "the answer had ended"
    assert not answer("abcd", frames=2, verified=3, after=4).exercised("killed"), "it had not begun"
    assert answer("abcd", frames=2, verified=3).exercised("random") and not answer("abcd").exercised("random")


def test_one_different_text_is_found_and_named() -> None:
    table = matrix.Matrix(NoStage(), command.parser().parse_args(["matrix"]))  # type: ignore[arg-type]
    table.cases = [Case("sampled", name, {}) for name in ("a", "b")]
    for condition in CONDITIONS:
        table.found[condition] = {"a": answer("same"), "b": answer("same" if condition != "killed" else "other")}
    identical = {row["condition"]: row["identical"] for row in table.rows()}
    assert identical == dict.fromkeys(CONDITIONS, 2) | {"killed": 1}
    report = table.report()
    assert not report["identical"] and [one["case"] for one in report["differences"]] == ["b"]
    assert report["differences"][0]["found"] == [("other", "length")]
