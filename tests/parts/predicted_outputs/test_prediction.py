"""`prediction`: through the API, as a source of an engine, and in the figures; no text depends on it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.api.parameters import Prepared
from cloud_gateway.api.schema import ChatBody, decode
from cloud_gateway.core.requests.choices import CORE
from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.sources.interface import ROOT
from cloud_gateway.core.sources.lookup import MIN_SURVIVAL
from cloud_gateway.parts.predicted_outputs import PART
from cloud_gateway.parts.predicted_outputs.follower import Predicted
from cloud_gateway.parts.predicted_outputs.parameter import MAX_TOKENS, PredictedText, Prediction, PredictionSource
from tests.support.body_cost import assert_in_proportion
from tests.support.echo import CHAT, ECHOED, echo_gateway, post
from tests.support.engines import complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.limits import request_limits
from tools.doubles.model import ShortMemory
from tools.doubles.workers import LoopWorker

LIMITS = request_limits(parameters=PART.parameters())
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
COUNT = 80


# --- the API ----------------------------------------------------------------------------------------------------------


def predicting(content: Any, **more: Any) -> dict[str, Any]:
    return {**CHAT, **more, "prediction": {"type": "content", "content": content}}


@pytest.mark.parametrize(
    ("content", "accepted", "rejected"),
    [
        (ECHOED, len(ECHOED.encode()), 0),
        ([{"type": "text", "text": ECHOED[:6]}, {"type": "text", "text": ECHOED[6:]}], len(ECHOED.encode()), 0),
        ("zzz", 0, 3),
        ("user: hello", 11, 0),
        ("", 0, 0),
    ],
)
async def test_the_usage_says_how_much_of_it_came_true(
    tmp_path: Path, content: Any, accepted: int, rejected: int
) -> None:
    async with echo_gateway(tmp_path, LIMITS) as echo:
        status, body, _ = await post(echo, predicting(content))
    assert status == 200, body
    assert body["choices"][0]["message"]["content"] == ECHOED
    assert body["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": rejected,
    }
    assert body["usage"]["completion_tokens"] == len(ECHOED.encode()), "as without it: what is rejected is not billed"
    assert [source.name for source in echo.engine.requests[0].brought] == ["prediction"]


async def test_choices_are_added_up(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, LIMITS) as echo:
        _, body, _ = await post(echo, predicting("user: ?", n=2))
    assert body["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 12,
        "rejected_prediction_tokens": 2,
    }


async def test_text_completions_take_it_too(tmp_path: Path) -> None:
    body = {"model": "echo", "prompt": "a b c", "prediction": {"type": "content", "content": "a b"}}
    async with echo_gateway(tmp_path, LIMITS) as echo:
        status, answer, _ = await post(echo, body, "/v1/completions")
    assert status == 200 and answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 3


@pytest.mark.parametrize(
    "value", ["text", {"type": "content"}, {"type": "image", "content": "x"}, {"type": "content", "content": [1]}, 3]
)
async def test_what_is_no_prediction_is_one_sentence(tmp_path: Path, value: Any) -> None:
    async with echo_gateway(tmp_path, LIMITS) as echo:
        status, body, _ = await post(echo, {**CHAT, "prediction": value})
    assert (status, body["error"]["param"]) == (400, "prediction")
    assert '{"type": "content", "content": TEXT}' in body["error"]["message"]


async def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    body = json.dumps(predicting("§"), ensure_ascii=False).encode().replace("§".encode(), b"\xc2")
    async with echo_gateway(tmp_path, LIMITS) as echo:
        status, answer, _ = await post(echo, body)
    assert (status, answer["error"]["param"]) == (400, "prediction")


async def test_null_and_its_name_in_a_text_are_no_prediction(tmp_path: Path) -> None:
    bodies = ({**CHAT, "prediction": None}, {**CHAT, "messages": [{"role": "user", "content": "prediction"}]})
    async with echo_gateway(tmp_path, LIMITS) as echo:
        for body in bodies:
            status, answer, _ = await post(echo, body)
            assert status == 200 and "completion_tokens_details" not in answer["usage"]
    assert all(request.brought == [] for request in echo.engine.requests)


def test_checking_a_long_one_takes_time_in_proportion_to_its_length() -> None:
    """A text, and parts without any."""
    for content in ("x" * 50_000, [{"type": "text", "text": ""}] * 2_000):
        short, long = (json.dumps(predicting(content * n)).encode() for n in (1, 4))
        assert_in_proportion(lambda short=short: read(short), lambda long=long: read(long))


def read(data: bytes) -> object:
    """The prediction of a chat's body."""
    parameter = Prediction()
    _, values = decode(data, ChatBody, parameter.fields(ChatBody), CORE)
    return parameter.read(values)


# --- the source -------------------------------------------------------------------------------------------------------


def source_of(prediction: list[int]) -> PredictionSource:
    source = PredictionSource(Predicted(prediction), len(PROMPT))
    source.committed(PROMPT)
    return source


def test_it_suggests_a_chain_from_the_first_token_on() -> None:
    chain = source_of(list(range(20, 40))).propose(16)
    assert [suggestion.token for suggestion in chain] == list(range(20, 20 + len(chain))) and len(chain) >= 4
    assert [suggestion.parent for suggestion in chain] == [ROOT, *range(len(chain) - 1)]


def test_the_chain_grows_while_it_is_right_and_ends_where_it_does() -> None:
    source = source_of(list(range(20, 80)))
    lengths = []
    for start in range(20, 70, 10):
        lengths.append(len(source.propose(16)))
        source.committed(range(start, start + 10))
    assert lengths == sorted(lengths) and lengths[0] < 16 == lengths[-1]
    assert len(source.propose(16)) == 10
    source.committed(range(70, 80))
    assert source.propose(16) == () and source.why == "the prediction has ended"


def test_a_wrong_one_soon_suggests_nothing() -> None:
    source = source_of(list(range(20, 80)))
    for token in (900, 901, 902):
        source.committed([token])
    assert source.propose(16) == () and "was right" in (source.why or "")


def test_no_candidate_is_less_likely_than_is_of_use() -> None:
    survival = 1.0
    for suggestion in source_of(list(range(20, 80))).propose(60):
        survival *= suggestion.chance
    assert survival >= MIN_SURVIVAL


def test_a_prompt_in_pieces_is_no_completion() -> None:
    source = PredictionSource(Predicted([1, 2, 3, 4]), 6)
    source.committed([9, 9, 9, 9])
    source.committed([9, 9, 1, 2])
    assert source.propose(1)[0].token == 3


def test_a_long_one_is_cut_to_what_is_of_use() -> None:
    read: list[int] = []

    def encode(text: str) -> list[int]:
        read.append(len(text))
        return [7] * len(text)

    prepared = PredictedText("x" * 10_000_000).prepare(encode, context=300)
    assert read[0] <= 8 * MAX_TOKENS
    source = prepared.begin(PROMPT)
    source.committed([*PROMPT, *[7] * 300])
    assert not source.propose(4), "no completion is longer than the context"


# --- the engine -------------------------------------------------------------------------------------------------------


def prepared(tokens: list[int]) -> Prepared:
    return PredictedText("").prepare(lambda _: tokens, context=4096)


async def answer(
    prediction: list[int] | None, *, draft: bool = False, worker: bool = False, sources: tuple[Any, ...] = ()
) -> tuple[list[int], Usage]:
    wanted = GenerationRequest(
        PROMPT, COUNT, ignore_eos=True, speculation=Speculation(policy="adaptive", sources=sources)
    )
    if prediction is not None:
        wanted = replace(wanted, brought=[prepared(prediction)])
    with engines() as started:
        local = TableDraft(model=ShortMemory(right=0.7)) if draft else None
        engine = started(LoopWorker(0.002, 0.8) if worker else None, local, TableTarget(pass_s=0, model=ShortMemory()))
        tokens, done = await complete(engine, wanted)
        return tokens, done.usage


async def test_a_right_prediction_saves_most_passes_and_changes_no_token() -> None:
    plain, before = await answer(None)
    found, usage = await answer(plain)
    assert found == plain and before.rounds == COUNT
    assert usage.rounds <= COUNT / 6
    assert usage.accepted == {"prediction": usage.sources["prediction"]["accepted"]}


@pytest.mark.parametrize("others", [{}, {"draft": True}, {"draft": True, "worker": True}, {"sources": ("lookup",)}])
async def test_edits_and_garbage_change_no_token(others: dict[str, Any]) -> None:
    plain, _ = await answer(None, **others)
    rng = random.Random(7)
    garbage = [rng.randrange(50) for _ in plain]
    edited = [*plain[:20], 3, 3, *plain[25:50], *plain[55:]]
    for prediction in (plain, edited, garbage, [], plain[::-1]):
        found, _ = await answer(prediction, **others)
        assert found == plain


async def test_garbage_costs_few_rows_and_no_pass() -> None:
    _, before = await answer(None)
    _, usage = await answer([1_000 + number for number in range(COUNT)])
    assert usage.rounds == before.rounds == COUNT
    assert usage.drafted.get("prediction", 0) <= 16
