"""Greedy completions of vLLM are equal whatever the link process sends, and no draft ends the engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from edgespec_vllm.messages import Chain

from integrations.vllm.live.conftest import DRAFTS, MAX_LEN, Engine

VOCAB = 49152
rng = random.Random(5)
PROMPTS = [[rng.randrange(300, 40_000) for _ in range(12 + 3 * n)] for n in range(8)]
LONG = [[rng.randrange(300, 40_000) for _ in range(70)] for _ in range(8)]


@pytest.fixture(scope="session")
def plain(engine: Engine) -> dict[tuple[int, ...], list[int]]:
    """Each prompt alone, without a draft."""
    return {tuple(p): engine.generate([p], 40, offload=False)[0] for p in PROMPTS}


def chain(number: int, start: int, tokens: Sequence[int]) -> Chain:
    return Chain(number, start, list(tokens), [10] * len(tokens))


def good(texts: dict[tuple[int, ...], list[int]]) -> Any:
    """Drafts what the target will choose."""

    def answer(number: int, tokens: list[int]) -> list[Any]:
        for prompt, text in texts.items():
            if tuple(tokens[: len(prompt)]) == prompt:
                rest = text[len(tokens) - len(prompt) :][:12]
                if rest:
                    return [chain(number, len(tokens), rest)]
                return []

        return []

    return answer


def wrong(number: int, tokens: list[int]) -> list[Any]:
    return [chain(number, len(tokens), [7] * 9)]


def stale(number: int, tokens: list[int]) -> list[Any]:
    return [chain(number, max(len(tokens) - 3, 0), [*tokens[-3:-1], 9, 9, 9]), chain(number + 1, 0, tokens[:100])]


def hostile(number: int, tokens: list[int]) -> list[Any]:
    odd = [VOCAB, 2**31 - 1, 60_000, VOCAB - 1]
    return [*(chain(number, len(tokens), [one] * 40) for one in odd), chain(number, 2**32 - 1, [1])]


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["good", "wrong", "stale", "hostile"])
def test_texts_are_equal_whatever_is_drafted(engine: Engine, plain: Any, kind: str, batch: int) -> None:
    engine.oracle.answer = {"good": good(plain), "wrong": wrong, "stale": stale, "hostile": hostile}[kind]
    texts = engine.generate(PROMPTS[:batch], 40)
    assert texts == [plain[tuple(p)] for p in PROMPTS[:batch]]
    assert engine.hook is not None
    if kind == "good":
        assert engine.accepted > 15 * batch


def test_texts_are_equal_when_the_link_process_goes_and_returns(engine: Engine, plain: Any) -> None:
    engine.oracle.answer = good(plain)

    def lose(step: int) -> None:
        if step in (6, 12):
            engine.oracle.link.drop()

    assert engine.generate(PROMPTS[:2], 40, before=lose) == [plain[tuple(p)] for p in PROMPTS[:2]]
    connections = engine.hook.board.line.connected
    assert engine.generate(PROMPTS[:1], 40) == [plain[tuple(PROMPTS[0])]]
    assert connections >= 1


def test_texts_are_equal_under_preemption(engine: Engine) -> None:
    alone = {tuple(p): engine.generate([p], 90, offload=False)[0] for p in LONG}
    engine.oracle.answer = good(alone)
    seen = []
    preempt = engine.scheduler._preempt_request
    engine.scheduler._preempt_request = lambda *args, **kwargs: (seen.append(1), preempt(*args, **kwargs))[1]
    texts = engine.generate(LONG, 90)
    engine.scheduler._preempt_request = preempt
    assert seen
    assert texts == list(alone.values())


@pytest.mark.parametrize("kind", ["good", "wrong", "hostile"])
def test_json_is_equal_whatever_is_drafted(engine: Engine, kind: str) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    shape = {"a": {"type": "integer"}, "b": {"type": "string", "enum": ["yes", "no"]}}
    schema = {"type": "object", "properties": shape, "required": ["a", "b"], "additionalProperties": False}
    prompt = PROMPTS[0]
    params = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    alone = engine.generate([prompt], 60, offload=False, structured_outputs=params)[0]
    engine.oracle.answer = {"good": good({tuple(prompt): alone}), "wrong": wrong, "hostile": hostile}[kind]
    assert engine.generate([prompt], 60, structured_outputs=params)[0] == alone
    assert engine.hook is not None
    assert kind != "good" or engine.accepted > len(alone) // 4


@pytest.mark.parametrize("left", [DRAFTS + 3, 3, 1])
def test_texts_are_equal_up_to_the_end_of_the_context(engine: Engine, left: int) -> None:
    prompt = [rng.randrange(300, 40_000) for _ in range(MAX_LEN - left)]
    alone = engine.generate([prompt], 40, offload=False)[0]
    engine.oracle.answer = good({tuple(prompt): [*alone, 5, 5, 5, 5]})
    assert engine.generate([prompt], 40)[0] == alone
    assert len(alone) <= left


def test_no_prompt_leaves_without_consent(engine: Engine) -> None:
    engine.generate(PROMPTS[:1], 5, offload=False)
    engine.oracle.pump()
    engine.oracle.known.clear()
    engine.generate(PROMPTS[:2], 8, offload=False)
    engine.oracle.pump()
    assert engine.oracle.known == {}
