"""Answers that a worker or the local draft writes while a request waits, and earlier completions: fewer passes, the
same text, and nothing for others to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.queued_answers import jobs
from cloud_gateway.parts.queued_answers.workers import FIRST_NUMBER
from edgespec.core.errors import ModelError
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import MAX_DEPTH, Close, Open, Sampling, ToWorker, Tree
from tests.parts.queued_answers.answering import answering
from tests.support.engines import complete
from tests.support.until import until
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.workers import LoopWorker, OneWorker, Team

COUNT = 40
GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=1.0, seed=5)
ANSWERS = Speculation(policy="adaptive", sources=("answers",))
PLAIN = Speculation(policy="plain")
pytestmark = pytest.mark.driven


def wanted(
    first: int = 2, speculation: Speculation = ANSWERS, count: int = COUNT, sampling: Sampling = GREEDY, **more: Any
) -> GenerationRequest:
    prompt = [first, *range(20)]
    return GenerationRequest(prompt, count, sampling, ignore_eos=True, speculation=speculation, **more)


class Writer(LoopWorker):
    """Drafts as the target does for requests that wait, and is silent for those that run."""

    def __init__(self) -> None:
        super().__init__(0.002, 1.0, 0.002, id="lab-7", name="lab-7")

    def _arrive(self, body: ToWorker) -> None:
        if body.request >= FIRST_NUMBER:
            super()._arrive(body)

    @property
    def asked(self) -> list[Open]:
        """Answers that it was to write."""
        return [body for body in self.seen if isinstance(body, Open) and body.request >= FIRST_NUMBER]

    @property
    def ends(self) -> list[str]:
        """Why it was to write no more."""
        return [body.reason for body in self.seen if isinstance(body, Close) and body.request >= FIRST_NUMBER]


Entries = list[tuple[int, str, str]]
"""The first token of a request, a worker's name, and `assigned` or why it was given no more."""


class Shown(events.Listener):
    """Notes which workers are sent a request's prompt."""

    def __init__(self, first: int, entries: Entries) -> None:
        self._first = first
        self._entries = entries

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        if isinstance(event, events.WorkerChanged) and event.assigns and effects:
            self._entries.append((self._first, event.name or event.worker, "assigned"))
        for effect in effects:
            if isinstance(effect, events.Released):
                self._entries.append((self._first, effect.given.name, effect.reason))

    def noted(self, note: events.Note, now: float) -> None:
        match note:
            case events.PromptSent(_, name):
                self._entries.append((self._first, name, "assigned"))
            case events.PromptWithdrawn(_, name, reason, _):
                self._entries.append((self._first, name, reason))


class Noting:
    """Listens to all requests."""

    def __init__(self) -> None:
        self.entries: Entries = []

    def listener(self, generation: Generation, start: PolicyStart) -> Shown:
        return Shown(generation.request.tokens[0], self.entries)


async def queued(
    worker: OneWorker | Team | None,
    answers: int = 1,
    request: GenerationRequest | None = None,
    local: TableDraft | None = None,
    target: TableTarget | None = None,
) -> tuple[list[int], Usage, list[tuple[int, str, str]]]:
    """The completion of a request that waited behind another one, and which workers were sent its prompt."""
    with answering(answers) as make:
        noting = Noting()
        target = target or TableTarget(slots=1)
        engine = make(worker, local, target, recorders=[noting], prefer="offload")
        first = asyncio.create_task(complete(engine, wanted(1, PLAIN, 4 * COUNT)))
        await asyncio.sleep(0)
        tokens, done = await complete(engine, request or wanted())
        await first
    assert all(entry[0] == 2 for entry in noting.entries), "the one that runs is shown to nobody"
    return tokens, done.usage, noting.entries


@pytest.mark.claim("a-workers-answer-saves-passes-and-changes-no-token")
async def test_a_workers_answer_saves_passes_and_changes_no_token() -> None:
    plain, before, _ = await queued(Writer(), 0)
    worker = Writer()
    found, usage, entries = await queued(worker)
    assert found == plain and before.rounds > COUNT / 2
    assert usage.rounds <= COUNT / 4 and usage.sources["answers"]["accepted"] > COUNT / 2
    (opening,) = worker.asked
    assert opening.tokens == wanted().tokens and worker.ends == ["written"]
    assert usage.workers == ["lab-7"] and usage.local_draft_passes == 0
    assert usage.frames["received"] == usage.by_worker["lab-7"]["frames"] > 0
    assert entries[:3] == [(2, "lab-7", "assigned"), (2, "lab-7", "written"), (2, "lab-7", "assigned")]


async def test_what_a_worker_writes_the_local_draft_does_not_write_again() -> None:
    _, usage, _ = await queued(Writer(), local=TableDraft())
    assert usage.sources["answers"]["accepted"] > COUNT / 2
    assert usage.local_draft_passes < COUNT / 4, "an answer takes it COUNT passes; some it makes while the request runs"


@pytest.mark.claim("a-worker-that-may-not-see-the-prompt-is-sent-nothing")
@pytest.mark.parametrize(
    "request_",
    [wanted(speculation=Speculation(policy="adaptive", sources=("answers",), offload="never")),
     wanted(groups=frozenset({"physics"}))],
    ids=["key without offloading", "another group"],
)  # fmt: skip
async def test_a_worker_that_may_not_see_the_prompt_is_sent_nothing(request_: GenerationRequest) -> None:
    worker = Writer()
    _, usage, entries = await queued(worker, request=request_)
    assert worker.seen == [] and usage.workers == [] and entries == []


@pytest.mark.parametrize(
    ("answers", "request_"),
    [(0, wanted()), (1, wanted(speculation=Speculation(policy="adaptive", sources=("lookup",))))],
    ids=["switched off", "request without the source"],
)
async def test_nothing_is_written_where_nobody_asks_for_it(answers: int, request_: GenerationRequest) -> None:
    worker = Writer()
    await queued(worker, answers, request_)
    assert worker.seen and worker.asked == []


@pytest.mark.claim("a-worker-that-may-not-see-the-prompt-is-sent-nothing")
async def test_a_request_that_is_cancelled_in_the_queue_ends_the_writing() -> None:
    worker = Writer()
    with answering(1) as make:
        engine = make(worker, None, TableTarget(slots=1))
        first = asyncio.create_task(complete(engine, wanted(1, PLAIN, 4 * COUNT)))
        await asyncio.sleep(0)
        stream = engine.submit(wanted())
        await until(lambda: worker.asked)
        stream.cancel()
        await until(lambda: worker.ends == ["cancelled"])
        seen = len(worker.seen)
        await first
    assert len(worker.seen) == seen and not worker.requests


class Falters(Writer):
    """Is silent after its first answer."""

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        super().send(worker, bodies)
        self.muted = bool(self.ends)


async def test_a_request_that_runs_takes_the_worker_from_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Falters()
    with answering(1) as make:
        monkeypatch.setattr(jobs, "ANSWER_TOKENS", 4)
        engine = make(worker, None, TableTarget(slots=2))
        running = [asyncio.create_task(complete(engine, wanted(1, PLAIN, count))) for count in (COUNT, 8 * COUNT)]
        await asyncio.sleep(0)
        ended = await asyncio.gather(*(complete(engine, wanted(first)) for first in (2, 3)))
        await asyncio.gather(*running)
    assert [opening.tokens[0] for opening in worker.asked] == [2, 3]
    assert worker.ends == ["written", "needed elsewhere"]
    assert all(len(tokens) == COUNT for tokens, _ in ended)


class Hostile(OneWorker):
    """Answers an answer's opening with these frames."""

    def __init__(self, *frames: tuple[int, list[int], list[int]]) -> None:
        """`frames`: first id, parents and tokens of each."""
        super().__init__(Writer().worker)
        self.frames = frames

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        super().send(worker, bodies)
        for body in (body for body in bodies if isinstance(body, Open) and body.request >= FIRST_NUMBER):
            digest = prefix_hash(body.tokens)
            for first, parents, tokens in self.frames:
                numbers = [1] * len(tokens), [1] * len(tokens)
                frame = Tree(body.request, 1, len(body.tokens), digest, first, parents, tokens, *numbers)
                assert self.engine is not None
                self.engine.post(FrameArrived("lab-7", frame))


DEEP = (1, list(range(MAX_DEPTH)), [5] * MAX_DEPTH)


async def test_a_wrong_answer_costs_few_rows_and_no_token() -> None:
    plain, before, _ = await queued(Writer(), 0)
    found, usage, _ = await queued(Hostile(DEEP))
    assert found == plain and usage.rounds <= before.rounds
    assert usage.sources["answers"]["accepted"] <= usage.sources["answers"]["verified"] <= COUNT


# --- answers of the local draft, and earlier completions -------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_an_answer_written_in_the_queue_saves_passes_and_changes_no_token(sampling: Sampling) -> None:
    request = wanted(sampling=sampling)
    draft = TableDraft(right=0.98)
    plain, before, _ = await queued(None, 0, request, local=TableDraft(right=0.98))
    found, usage, _ = await queued(None, 1, request, local=draft)
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
    with answering(2) as make:
        monkeypatch.setattr(jobs, "ANSWER_TOKENS", 4)
        engine = make(None, draft, TableTarget(slots=1), prefer="offload")
        await asyncio.gather(*(complete(engine, wanted(number)) for number in (1, 2, 3)))
    assert opened[:5] == [1, 2, 3, 2, 3]


class NoRoom(TableDraft):
    """Has no memory for requests that wait."""

    def open(self, request: object, tokens: object, scope: bytes = b"") -> None:
        if request < 0:  # type: ignore[operator]
            raise ModelError("no room")
        super().open(request, tokens, scope)


async def test_a_draft_without_room_costs_the_queue_its_answers_and_nothing_else() -> None:
    plain, _, _ = await queued(None, 0, local=TableDraft(right=0.98))
    found, usage, _ = await queued(None, 2, local=NoRoom(right=0.98))
    assert found == plain and usage.sources["answers"]["accepted"] == 0


async def twice(scope: bytes, then: bytes) -> tuple[list[int], Usage, Usage, list[int]]:
    """The same prompt twice; with each request's scope."""
    with answering() as make:
        engine = make(target=TableTarget())
        before, first = await complete(engine, wanted(1, cache_scope=scope))
        tokens, done = await complete(engine, wanted(1, cache_scope=then))
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
    with answering() as make:
        engine = make(target=TableTarget())
        await complete(engine, wanted(1, PLAIN, cache_scope=b"a"))
        _, done = await complete(engine, wanted(1, cache_scope=b"a"))
        assert done.usage.sources["answers"]["proposed"] == 0
        _, done = await complete(engine, wanted(1, PLAIN, cache_scope=b"a"))
    assert done.usage.rounds == COUNT
