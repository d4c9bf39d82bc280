"""`tools.bench long`: what it makes of traces, its prompts, and its refusals."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cloud_gateway.core.trace.format import AnyEvent, Decided, Step, Verified, Verify
from edgespec.core.errors import ConfigError
from edgespec.lab.rig import RigError
from edgespec.lab.rig.chat import ChatClient
from tests.support.tiny_gguf import make_tiny_gguf
from tools.bench import __main__ as bench
from tools.bench import long, long_figures

SENT = 1.25


def rounds(*ends: tuple[float, float, int]) -> list[AnyEvent]:
    """(decided, verified, tokens) of each."""
    found: list[AnyEvent] = []
    for decided, verified, tokens in ends:
        found += [Decided(decided, 0, Verify([])), Verified(verified, [7] * tokens, [0.1] * tokens, [0], [])]
    return found


FIRST = rounds((0.95, 1.0, 1), (1.05, 1.1, 2), (1.15, 1.2, 1), (1.25, 1.3, 1), (1.65, 1.7, 1), (2.1, 2.2, 1))
SECOND = rounds((1.0, 1.05, 2), (1.15, 1.2, 1), (1.25, 1.3, 1), (1.65, 1.7, 1), (2.1, 2.2, 1))
PROMPT = [Step(1.26, "Admitted", 0), Step(1.6, "Prefilled", 90), Step(2.1, "Prefilled", 60), *rounds((2.25, 2.3, 1))]
LATER = rounds((2.35, 2.4, 1))


def figures(received: Sequence[Sequence[float]] = ((1.1, 1.2, 1.3, 1.9, 2.6),)) -> dict[str, float]:
    return long_figures.beside([[*FIRST, *LATER], [*SECOND, *LATER]], PROMPT, received, SENT)


def test_tokens_are_counted_alone_and_until_the_prompts_first_one() -> None:
    found = figures()
    assert found["alone_tokens_per_s"] == 20.0, "four tokens in 0.2 s"
    assert found["beside_tokens_per_s"] == round(6 / 1.05, 2) and found["ratio"] == round(6 / 1.05 / 20, 3)


def test_a_gap_beside_the_prompt_may_begin_before_or_end_after_it() -> None:
    found = figures()
    assert (found["gap_alone_ms"], found["gap_ms"]) == (150.0, 500.0)
    assert (found["client_gap_alone_ms"], found["client_gap_ms"]) == (100.0, 700.0)


def test_a_chunk_is_what_the_engine_did_since_any_requests_event_before() -> None:
    found = figures()
    assert (found["chunk_ms"], found["chunk_tokens"]) == (400.0, 60), "from 1.7 to 2.1"
    assert long_figures.chunks([FIRST, PROMPT], PROMPT, SENT)[0] == (90, pytest.approx(0.3))
    assert found["round_ms"] == 100.0


def test_the_summary_has_the_worst_repetition_of_each_kind() -> None:
    one, two = figures(), figures(((1.1, 1.2, 2.1),))
    two["ratio"] = 0.2
    assert long_figures.summary([one, two]) == {
        "ratio_min": 0.2, "gap_ms_max": 500.0, "client_gap_ms_max": 900.0, "chunk_and_round_ms": 500.0,
    }  # fmt: skip


def test_a_long_prompt_has_as_many_words_as_fit_and_no_two_are_the_same() -> None:
    words = [f"w{number}" for number in range(40)]
    texts = [long.long_text(words, 64, seed, lambda text: 2 * len(text.split()) + 3) for seed in ("1 0 0", "1 0 1")]
    assert [len(text.split()) for text in texts] == [30, 30] and texts[0] != texts[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--streams", "9"], "The streams need 27 different prompts"),
        (["--model", "nowhere.gguf"], "there is no such file"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_starts(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["long", *given]) == ConfigError.exit_code
    assert said in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_a_worker_needs_a_core_that_the_gateway_does_not_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    model = str(make_tiny_gguf(tmp_path / "tiny.gguf"))
    assert bench.main(["long", "--model", model, "--draft", model, "--cores", "2"]) == ConfigError.exit_code
    assert "needs 3 cores and may use 2: lower --cores, or leave --draft out" in capsys.readouterr().err


def chunk(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}], "usage": None}


def test_a_client_notes_when_text_came_and_stops_when_asked_to() -> None:
    seen, ended = long.Seen(), Event()
    end = {"choices": [], "usage": {"prompt_tokens": 7}}
    seen.read(iter([chunk(""), chunk("a"), chunk("b"), end]), ended)
    assert (seen.text, len(seen.times), seen.prompt_tokens) == ("ab", 2, 7) and seen.times == sorted(seen.times)
    ended.set()
    seen.read(iter([chunk("c"), chunk("d")]), ended)
    assert seen.text == "abc"
    with pytest.raises(RigError, match="broke off a completion: too long"):
        seen.read(iter([{"error": "too long"}]), ended)


def test_a_stream_that_ends_or_fails_too_early_is_not_waited_for() -> None:
    streams = long.Streams(ChatClient(1, "", ""), ["a"], 64, seen=[long.Seen()], running=[Future()])
    streams.running[0].set_result(None)
    with pytest.raises(ConfigError, match="ended before the long prompt was read: raise --max-tokens"):
        streams.wait(lambda one: bool(one.times))
    streams.running = [Future()]
    streams.running[0].set_exception(RigError("gone"))
    with pytest.raises(RigError, match="gone"):
        streams.wait(lambda one: bool(one.times))
