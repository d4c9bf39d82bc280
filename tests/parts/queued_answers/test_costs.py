"""What goes wrong with answers that are written in the queue: the text stays the same, and the price is bounded.

Verifier backlog, and a poisoned trie, on the driven clock.
"""

from __future__ import annotations

import asyncio

import pytest

from cloud_gateway.core.requests.request import Speculation
from cloud_gateway.parts.queued_answers.archive import KEPT_TOKENS, Archive
from tests.cloud_gateway.engine.test_failure_modes import COUNT, PASS_S, PLAIN, plainly, wanted
from tests.parts.queued_answers.answering import answering
from tests.support.engines import complete
from tools.doubles.engines import TableDraft, TableTarget

pytestmark = pytest.mark.driven


async def backlog(answers: int) -> tuple[float, list[list[int]]]:
    """Seconds that a completion takes while four others wait, whose answers are written meanwhile by a draft as
    slow as the target; all texts."""
    draft = TableDraft(right=0.9)
    real = draft.draft

    def slow(*arguments: object) -> object:
        engine.target.sleep(PASS_S)  # type: ignore[attr-defined]
        return real(*arguments)

    draft.draft = slow  # type: ignore[method-assign, assignment]
    with answering(answers) as make:
        engine = make(None, draft, TableTarget(pass_s=PASS_S, slots=1))
        using = Speculation(policy="adaptive", sources=("answers",), prefer="offload")
        requests = [wanted(0, PLAIN), *(wanted(number, using) for number in range(1, 5))]
        ended = await asyncio.gather(*(complete(engine, request) for request in requests))
    return ended[0][1].usage.times.decode_s, [tokens for tokens, _ in ended]


async def test_a_verifier_backlog_slows_the_running_request_by_a_quarter_at_most() -> None:
    alone_s, plain = await backlog(0)
    seconds, found = await backlog(8)
    assert found == plain
    assert alone_s < seconds <= 1.34 * alone_s, "its pace is at least three quarters"


async def test_a_poisoned_trie_costs_few_rows_and_falls_silent() -> None:
    """Queued answers that share every other token with the completion, and continue it wrongly each time."""
    plain, base = await plainly()
    asked = wanted(speculation=Speculation(policy="adaptive", sources=("answers",)))
    archive = Archive(KEPT_TOKENS)
    for shift in (1, 2, 3):
        wrong = [token if at % 2 else (token + shift) % 32 for at, token in enumerate(plain)]
        archive.keep(b"a", asked.tokens, wrong)

    with answering(archive=archive) as make:
        engine = make(target=TableTarget(pass_s=PASS_S))
        found, done = await complete(engine, asked)
    usage = done.usage
    assert found == plain
    assert usage.rounds <= base.rounds and usage.times.decode_s <= 1.05 * base.times.decode_s
    assert usage.sources["answers"]["verified"] <= COUNT, "less than a row for each token"
