"""Validation: for any bytes, a request or an error of one sentence."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.api.generation import ServedModel, generations
from cloud_gateway.api.schema import ChatBody, Common, CompletionBody, chat_messages, decode
from edgespec.core.errors import ClientError
from edgespec.core.protocol.messages import Sampling
from tools.doubles.limits import request_limits

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
        ({"edgespec": {"sources": "x"}}, "Invalid 'edgespec.sources': expected a list of lookup, answers"),
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
