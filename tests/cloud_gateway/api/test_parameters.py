"""Bodies of requests: the decoder, and over real sockets which parameters the engine gets, and which are refused by
name.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.api import schema
from cloud_gateway.api.generation import ServedModel, generations
from cloud_gateway.api.schema import RANGES, ChatBody, Common, CompletionBody, chat_messages
from cloud_gateway.core.policies.settings import DEFAULTS
from cloud_gateway.core.requests.choices import CORE
from cloud_gateway.core.requests.request import OPTIONS, Speculation
from edgespec.core.errors import ClientError
from edgespec.core.protocol.messages import Sampling
from edgespec.core.protocol.ranges import SAMPLING
from tests.support.echo import CHAT, ECHOED, HELLO, Echo, echo_gateway, post
from tools.doubles.limits import request_limits


def decode(data: bytes, kind: type[schema.Body]) -> schema.Body:
    """A body without parameters of parts."""
    body, _ = schema.decode(data, kind, {}, CORE)
    return body


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Echo]:
    async with echo_gateway(tmp_path, request_limits(client_options=OPTIONS)) as running:
        yield running


async def test_all_sampling_parameters_reach_the_engine(echo: Echo, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(
        **CHAT,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        logit_bias={"7": 3},
        seed=-1,
        stop=["x1", "x2"],
        max_completion_tokens=50,
        extra_body={
            "top_k": 40,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "edgespec": {"policy": "wanspec", "k": 3, "phi": 2, "prefer": "latency"},
        },
    )
    (request,) = echo.engine.requests
    sampling = request.sampling
    speculation = request.speculation
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.05)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.1, -0.2)
    assert (sampling.repetition_penalty, sampling.logit_bias, sampling.seed) == (1.1, {7: 3.0}, 2**63 - 1)
    assert (request.stop, request.max_tokens, request.ignore_eos) == (("x1", "x2"), 50, False)
    assert (speculation.policy, speculation.k, speculation.phi, speculation.offload) == ("wanspec", 3, 2.0, None)
    assert speculation.over(DEFAULTS).prefer == "latency" and Speculation().over(DEFAULTS).prefer == "balanced"


async def test_a_request_may_choose_how_it_is_verified(echo: Echo, client: openai.AsyncOpenAI) -> None:
    for requested, seed in (("shared-noise", 5), (None, None)):
        await client.chat.completions.create(**CHAT, seed=seed, extra_body={"edgespec": {"verification": requested}})
    assert [request.speculation.verification for request in echo.engine.requests] == ["shared-noise", None]


async def test_defaults_are_openais_and_an_absent_seed_is_random(echo: Echo, client: openai.AsyncOpenAI) -> None:
    for _ in range(2):
        await client.chat.completions.create(**CHAT)
    first, second = echo.engine.requests
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (1.0, 1.0, 0)
    assert first.max_tokens == 512 - len(ECHOED.encode()), "the end of the context comes before the default of 512"
    assert first.sampling.seed != second.sampling.seed
    assert first.speculation.policy is first.speculation.k is first.speculation.phi is None


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_completion_tokens": 4097}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": 5}, "stop"),
    ({"seed": 10**40}, "seed"),
    ({"frequency_penalty": True}, "frequency_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"256": 1}}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options"),
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]}, "messages[1].content[0]"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0]"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"n": 5, "max_tokens": 4000}, "n"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"tempreature": 1}, "tempreature"),
    ({"prompt": "x"}, "prompt"),
    ({"edgespec": {"policy": "magic"}}, "edgespec.policy"),
    ({"edgespec": {"sources": ["lookup", "magic"]}}, "edgespec.sources"),
    ({"edgespec": {"sources": "lookup"}}, "edgespec.sources"),
    ({"edgespec": {"k": 0}}, "edgespec.k"),
    ({"edgespec": {"phi": -1}}, "edgespec.phi"),
    ({"edgespec": {"offload": "always"}}, "edgespec.offload"),
    ({"edgespec": {"verification": "magic"}}, "edgespec.verification"),
    ({"edgespec": {"colour": "red"}}, "edgespec"),
]


async def test_bad_values_are_refused_by_name(echo: Echo) -> None:
    for change, param in BAD:
        status, body, _ = await post(echo, {**CHAT, **change})
        assert (status, body["error"]["param"]) == (400, param), (change, body)
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["message"].endswith(".")
    assert echo.engine.requests == []


async def test_a_parameter_that_no_part_serves_is_refused_in_one_sentence(echo: Echo) -> None:
    for name, value in (("logprobs", True), ("top_logprobs", 3), ("response_format", {"type": "json_object"})):
        status, body, _ = await post(echo, {**CHAT, name: value})
        assert status == 400
        assert body["error"]["code"] == "unsupported_parameter"
        sentence = f"The parameter '{name}' would change the completion and is not supported here; leave it out."
        assert body["error"]["message"] == sentence


SUBNORMALS = [5e-324, 1e-310, -1e-310]
OUTSIDE = [-1e308, 1e308, *SUBNORMALS]


@pytest.mark.claim("a-number-out-of-range-is-refused-with-the-range")
async def test_a_number_out_of_range_is_refused_with_the_range(echo: Echo) -> None:
    for name, bounds in RANGES.items():
        whole = name in ("top_k", "seed")
        for value in [bounds.low - 1, bounds.high + 1, *([] if whole else OUTSIDE)]:
            if value in bounds or name.startswith("edgespec"):
                continue
            wrong = {"7": value} if name == "logit_bias" else value
            status, body, _ = await post(echo, {**CHAT, name: wrong})
            assert (status, body["error"]["param"]) == (400, name), value
            assert body["error"]["message"] == f"Invalid '{name}': expected a number {bounds}."
    assert echo.engine.requests == []


@pytest.mark.claim("a-number-out-of-range-is-refused-with-the-range")
async def test_what_the_api_takes_fits_the_wire(echo: Echo) -> None:
    for name in SAMPLING:
        bounds = RANGES[name]
        for value in (bounds.low, bounds.high, *(v for v in SUBNORMALS if name != "top_k")):
            if value in bounds:
                right = {"7": value} if name == "logit_bias" else value
                assert (await post(echo, {**CHAT, name: right}))[0] == 200, (name, value)
                sampling = echo.engine.requests[-1].sampling
                assert msgspec.msgpack.decode(msgspec.msgpack.encode(sampling), type=Sampling) == sampling
    assert len(echo.engine.requests) >= 2 * len(SAMPLING)


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ([1, "x"], "mixed"),
        ([256], "vocabulary"),
        ([[1], [999]], "vocabulary"),
        ([], "length"),
        ({}, "prompt"),
        (["x"] * 9, "at most 8"),
    ],
)
async def test_bad_prompts_of_text_completions_are_refused(echo: Echo, prompt: Any, sentence: str) -> None:
    status, body, _ = await post(echo, {"model": "echo", "prompt": prompt}, "/v1/completions")
    assert status == 400
    assert body["error"]["param"].startswith("prompt")
    assert sentence in body["error"]["message"]


async def test_parameters_that_ask_for_nothing_pass(echo: Echo) -> None:
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True,
        "safety_identifier": "x", "prompt_cache_key": "y", "prediction": {"type": "content", "content": "z"},
        "logprobs": False, "top_logprobs": None, "tools": [], "tool_choice": "auto",
        "response_format": {"type": "text"},
        "temperature": None, "seed": None, "stop": None, "stream": None, "n": None, "edgespec": None,
    }  # fmt: skip
    status, body, _ = await post(echo, {**CHAT, **harmless})
    assert status == 200, body


async def test_messages_take_parts_developers_and_former_answers(echo: Echo) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "assistant", "content": "ok", "refusal": None, "annotations": [], "tool_calls": None, "audio": None},
        {"role": "user", "content": "", "name": "ann"},
    ]
    status, body, _ = await post(echo, {"model": "echo", "messages": messages})
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "system: be brief\nassistant: ok\nuser: "


@pytest.mark.claim("offloading-needs-the-keys-permission")
async def test_offloading_needs_the_keys_permission(echo: Echo) -> None:
    _, private = echo.keys.create("private")
    for key, requested, offload, why in (
        (echo.key, None, None, None),
        (echo.key, "never", "never", "the request asked for it"),
        (private, None, "never", "offloading is off for this API key"),
        (private, "auto", "never", "offloading is off for this API key"),
        (private, "never", "never", "the request asked for it"),
    ):
        _, body, _ = await post(
            echo, {**CHAT, "edgespec": {"offload": requested, "usage": True}}, Authorization=f"Bearer {key}"
        )
        assert echo.engine.requests[-1].speculation.offload == offload
        assert body["usage"]["edgespec"]["why_off"] == why


MODEL = ServedModel("m", 0, context=100, vocab_size=64, fingerprint="f")
LIMITS = request_limits(max_tokens_limit=50, max_choices=4)
PARAMETERS = sorted(
    {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, "tools", "user", "logprobs", "response_format"}
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["user", "text", 1])
names = st.text() | st.sampled_from(["role", "content", "type", "text", "k", "phi", "1"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=8
)


def run(body: Common) -> None:
    prompts = [[1, 2]]
    if isinstance(body, ChatBody):
        chat_messages(body.messages)
    for request in generations(body, prompts, MODEL, LIMITS, may_offload=True):
        assert 1 <= request.max_tokens <= LIMITS.api.max_tokens_limit
        assert request.sampling.seed is not None
        assert 0 <= request.sampling.seed < 2**63


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(PARAMETERS) | st.text(max_size=3), values, max_size=4), st.booleans())
def test_any_object_is_a_request_or_a_refusal(change: dict[str, Any], chat: bool) -> None:
    base = {"model": "m", **({"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"})}
    try:
        run(decode(json.dumps({**base, **change}).encode(), ChatBody if chat else CompletionBody))
    except ClientError as error:
        assert error.status == 400
        assert len(str(error)) < 400


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(ClientError) as error:
        decode(data, ChatBody)
    assert error.value.status == 400


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 4))
def test_every_64_bit_seed_gives_one_sampling_that_fits_the_wire(seed: int, n: int) -> None:
    body = decode(json.dumps({"model": "m", "prompt": "x", "seed": seed, "n": n}).encode(), CompletionBody)
    samplings = [request.sampling for request in generations(body, [[1]], MODEL, LIMITS, may_offload=True)]
    seeds = [sampling.seed for sampling in samplings]
    assert seeds == [(seed + choice) % 2**63 for choice in range(n)]
    assert len(set(seeds)) == n
    for sampling in samplings:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(sampling), type=Sampling) == sampling


def test_a_sentence_names_the_place_and_says_json_types() -> None:
    for change, sentence in (
        ({"temperature": "x"}, "Invalid 'temperature': expected number | null, got string."),
        ({"messages": [{"role": 5}]}, "Invalid 'messages[0].role': expected string, got integer."),
        ({"zz": 1}, "Unknown parameter: 'zz'."),
        ({"temprature": 1}, "Unknown parameter: 'temprature' (did you mean 'temperature'?)."),
        ({"x" * 9999: 1}, f"Unknown parameter: '{'x' * 64}'."),
        ({"logit_bias": {"64": 1}}, "Invalid 'logit_bias': token 64 is outside the model's vocabulary of 64."),
        ({"edgespec": {"offload": "always"}}, "Invalid 'edgespec.offload': expected auto or never."),
        ({"edgespec": {"phi": "x"}}, "Invalid 'edgespec.phi': expected learnt or a number from 0 to 100."),
        ({"edgespec": {"sources": "x"}}, "Invalid 'edgespec.sources': expected a list of lookup"),
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **change}
        with pytest.raises(ClientError) as error:
            run(decode(json.dumps(body).encode(), ChatBody))
        assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(("data", "why"), [(b'{"n":1,}', ": trailing comma in object (byte 7)."), (b'{"\xff":1}', ".")])
def test_a_body_that_is_no_json_is_refused_with_the_place(data: bytes, why: str) -> None:
    with pytest.raises(ClientError) as error:
        decode(data, ChatBody)
    assert str(error.value) == f"The request body is not valid JSON in UTF-8{why}"


@pytest.mark.parametrize("value", [b"\xff", b'"\xff"', b'"\\q"', b"1e999", b"9" * 5000, b"[" * 3000 + b"]" * 3000])
@pytest.mark.parametrize("place", [b'"suffix":%s', b'"audio":%s', b'"tool_choice":%s', b'"tool_calls":[%s]'])
def test_values_that_are_left_as_they_came_are_refused_as_others(place: bytes, value: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"assistant","content":"x"%s}]%s}'
    inner = place % value
    data = body % ((b"," + inner, b"") if b"tool_calls" in place else (b"", b"," + inner))
    with pytest.raises(ClientError) as error:
        decoded = decode(data, ChatBody)
        chat_messages(decoded.messages)
    assert error.value.status == 400
