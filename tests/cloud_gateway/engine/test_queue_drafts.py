"""Answers written while a request waits, and earlier completions: candidates only, and only of the same scope."""

from __future__ import annotations

import asyncio

import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.sources.interface import SourceSettings
from cloud_gateway.engine import queued_answers
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from tests.support.engines import complete, engines
from tools.doubles.engines import TableDraft, TableTarget

COUNT = 40
GREEDY, SAMPLED = Sampling(temperature=0), Sampling(temperature=1.0, seed=5)
ANSWERS, NONE = Speculation(policy="adaptive", sources=("answers",)), Speculation(policy="plain")
pytestmark = pytest.mark.driven


def wanted(
    first: int, scope: bytes = b"a", sampling: Sampling = GREEDY, speculation: Speculation = ANSWERS
) -> GenerationRequest:
    prompt, count = [first, *range(20)], COUNT if first else 4 * COUNT
    return GenerationRequest(prompt, count, sampling, ignore_eos=True, speculation=speculation, cache_scope=scope)


async def queued(
    count: int, sampling: Sampling = GREEDY, draft: TableDraft | None = None
) -> tuple[list[int], Usage, TableDraft]:
    """The completion of a request that waited behind another one, its policy making no local draft pass."""
    target, draft = TableTarget(slots=1), draft or TableDraft(right=0.98)
    with engines() as make:
        engine = make(None, draft, target, sources=SourceSettings(queued_answers=count), prefer="offload")
        first = asyncio.create_task(complete(engine, wanted(0, b"", sampling, NONE)))
        await asyncio.sleep(0)
        tokens, done = await complete(engine, wanted(2, b"", sampling))
        await first
    return tokens, done.usage, draft


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_an_answer_written_in_the_queue_saves_passes_and_changes_no_token(sampling: Sampling) -> None:
    plain, before, _ = await queued(0, sampling)
    found, usage, draft = await queued(1, sampling)
    assert found == plain
    assert before.sources["answers"]["accepted"] == 0 and usage.sources["answers"]["accepted"] > COUNT / 2
    assert usage.rounds <= COUNT / 4
    assert usage.local_draft_passes > 10, "the answer's passes are counted"
    assert not draft._tokens, "the draft holds nothing of it any more"


async def test_every_waiting_request_gets_an_answer_before_any_gets_two(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = TableDraft(right=0.98)
    opened: list[object] = []
    real = draft.open
    draft.open = lambda request, tokens, scope=b"": (opened.append(tokens[0]), real(request, tokens, scope))[1]  # type: ignore[method-assign]
    with engines() as make:
        monkeypatch.setattr(queued_answers, "QUEUED_TOKENS", 4)
        settings = SourceSettings(queued_answers=2)
        engine = make(None, draft, TableTarget(slots=1), sources=settings, prefer="offload")
        await asyncio.gather(*(complete(engine, wanted(number)) for number in (1, 2, 3)))
    assert opened[:5] == [1, 2, 3, 2, 3]


class NoRoom(TableDraft):
    """Has no memory for requests that wait."""

    def open(self, request: object, tokens: object, scope: bytes = b"") -> None:
        if request < 0:  # type: ignore[operator]
            raise ModelError("no room")
        super().open(request, tokens, scope)  # type: ignore[arg-type]


async def test_a_draft_without_room_costs_the_queue_its_answers_and_nothing_else() -> None:
    plain, _, _ = await queued(0)
    found, usage, _ = await queued(2, draft=NoRoom(right=0.98))
    assert found == plain and usage.sources["answers"]["accepted"] == 0


async def twice(scope: bytes, then: bytes) -> tuple[list[int], Usage, Usage, list[int]]:
    """The same prompt twice; with each request's scope."""
    with engines() as make:
        engine = make(target=TableTarget())
        before, first = await complete(engine, wanted(1, scope))
        tokens, done = await complete(engine, wanted(1, then))
    return before, first.usage, done.usage, tokens


async def test_the_same_question_again_is_decoded_from_the_earlier_completion() -> None:
    before, first, again, tokens = await twice(b"a", b"a")
    assert tokens == before and first.rounds == COUNT and again.rounds <= COUNT / 4


@pytest.mark.claim("another-scope-learns-nothing-of-earlier-completions")
@pytest.mark.parametrize(("scope", "then"), [(b"a", b"b"), (b"", b""), (b"a", b""), (b"", b"a")])
async def test_another_scope_learns_nothing_of_earlier_completions(scope: bytes, then: bytes) -> None:
    _, first, again, _ = await twice(scope, then)
    assert again.rounds == first.rounds == COUNT and again.sources["answers"]["proposed"] == 0


async def test_a_request_without_the_source_keeps_and_finds_nothing() -> None:
    with engines() as make:
        engine = make(target=TableTarget())
        await complete(engine, wanted(1, speculation=NONE))
        _, done = await complete(engine, wanted(1))
        assert done.usage.sources["answers"]["proposed"] == 0
        _, done = await complete(engine, wanted(1, speculation=NONE))
    assert done.usage.rounds == COUNT
