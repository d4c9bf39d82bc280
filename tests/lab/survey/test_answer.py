"""The result of a stream, however it is cut into pieces, and what is refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec_lab.survey.answer import MAX_BYTES, Answer, NotAStreamError


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


@pytest.mark.parametrize(
    ("data", "answered_error"),
    [
        (b"data: hello\n\n", False),
        (b"data: [1]\n\n", False),
        (b'data: {"choices": "x"}\n\n', False),
        (b'data: {"choices": [3]}\n\n', False),
        (b'data: {"id": "x"}\n\n', False),
        (b"data: \xff\xfe\n\n", False),
        (b'data: {"error": {"message": "key es-secret"}}\n\n', True),
        (b"x" * (MAX_BYTES + 1), False),
    ],
)
def test_what_is_no_openai_stream_is_refused_without_repeating_it(data: bytes, answered_error: bool) -> None:
    with pytest.raises(NotAStreamError) as error:
        Answer().feed(data, 1.0)
    assert error.value.answered_error is answered_error
    assert "secret" not in str(error.value)
