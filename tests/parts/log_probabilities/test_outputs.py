"""Log-probabilities through the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from cloud_gateway.api import Backend, ServedModel
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.models.text import Text
from cloud_gateway.parts.log_probabilities.parameter import LogProbabilities
from tests.support.echo import Echo, echo_gateway
from tests.support.engines import engine_settings, started
from tools.doubles.limits import request_limits

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a cat"}]}


@pytest.fixture
async def tiny(tmp_path: Path, tokenizer: Any, target: LlamaCppTarget) -> AsyncIterator[Echo]:
    engine = Engine(target, None, engine_settings(policy="plain"))
    served = ServedModel("tiny", 1_700_000_000, target.context, target.vocab_size, "es_tiny")
    async with echo_gateway(tmp_path, request_limits(parameters=(LogProbabilities(),))) as echo:
        echo.api.serve(Backend(engine, Text(tokenizer), served))
        with started(engine):
            yield echo


@pytest.fixture
async def client(tiny: Echo) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=tiny.base_url, api_key=tiny.key, max_retries=0) as client:
        yield client


def plain_log_probs(model: Path, prompt: list[int]) -> NDArray[np.float64]:
    """Log-probabilities of the token after a prompt, [vocab_size], by a target of its own."""
    target = LlamaCppTarget(model, eos=frozenset(), slots=1, threads=1, context=512)
    slot, _ = target.open(prompt)
    target.prefill(slot, prompt[:-1])
    (verified,) = target.verify([Work(slot, FlatTree([prompt[-1]], [-1], [0]))])
    logits = verified.logits(0).astype(np.float64)
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


async def test_logprobs_are_the_models_own(client: openai.AsyncOpenAI, tokenizer: Any, model: Path) -> None:
    text = Text(tokenizer)
    prompt = text.encode("the cat ")
    answer = await client.completions.create(
        model="tiny", prompt="the cat ", logprobs=2, max_tokens=12, temperature=1.3, seed=1,
        logit_bias={"20": 5}, extra_body={"edgespec": {"ignore_eos": True}},
    )  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert (
        logprobs is not None
        and logprobs.tokens
        and logprobs.token_logprobs
        and logprobs.top_logprobs
        and logprobs.text_offset
    )
    assert len(logprobs.tokens) == 12 and logprobs.text_offset[0] == 0
    first = plain_log_probs(model, prompt)
    spelled = {text.spell(i).decode("utf-8", "replace"): i for i in range(200)}
    assert logprobs.token_logprobs[0] == pytest.approx(float(first[spelled[logprobs.tokens[0]]]), abs=1e-4)
    best = max(logprobs.top_logprobs[0].values())
    assert best == pytest.approx(float(first.max()), abs=1e-4)


async def test_chat_logprobs_cover_the_text_to_the_byte_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {**ASK, "seed": 5, "max_tokens": 60, "logprobs": True, "top_logprobs": 3}
    options["logit_bias"] = {str(i): 40 for i in range(5, 31)}
    whole = (await client.chat.completions.create(**options)).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content and whole.message.content
    assert b"".join(bytes(one.bytes or []) for one in whole.logprobs.content).decode() == whole.message.content
    assert all(len(one.top_logprobs) == 3 for one in whole.logprobs.content)
    assert all(one.top_logprobs[0].logprob >= one.logprob for one in whole.logprobs.content)
    chunks = [chunk async for chunk in await client.chat.completions.create(**options, stream=True)]
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content or []]
    assert streamed == whole.logprobs.content
    stop = whole.message.content[8:11]
    cut = (await client.chat.completions.create(**options, stop=stop)).choices[0]
    assert cut.logprobs is not None and cut.message.content == whole.message.content.split(stop)[0]
    assert (
        b"".join(bytes(one.bytes or []) for one in cut.logprobs.content or []).decode().startswith(cut.message.content)
    )
    assert len(cut.logprobs.content or []) <= len(cut.message.content), "nothing of the tokens after the stop string"
    plain = (await client.chat.completions.create(**{**options, "logprobs": None, "top_logprobs": None})).choices[0]
    assert plain.logprobs is None and plain.message.content == whole.message.content
