"""What is read out of a stream, however it is cut into pieces, and what is refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tools.survey.answer import Answer


def event(item: Any, end: str = "\n\n") -> bytes:
    return f"data: {json.dumps(item)}{end}".encode()


def delta(**parts: Any) -> Any:
    return {"choices": [{"index": 0, "delta": parts}]}


STREAM = (
    b": a comment\r\n\r\n"
    + event(delta(role="assistant", content=""), "\r\n\r\n")
    + event(delta(content="One"))
    + event(delta(content=" two ✓"))
    + event({"choices": [{"delta": {}, "finish_reason": "length"}]})
    + event({"choices": [], "usage": {"completion_tokens": 7}})
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_means_the_same_however_it_is_cut(cuts: list[int]) -> None:
    answer = Answer()
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(edges):
        answer.feed(STREAM[start:end], 1.0)
    assert (answer.chunks, answer.tokens, answer.finished, answer.done) == (2, 7, True, True)
    assert (answer.first_at, answer.last_at) == (1.0, 1.0)
