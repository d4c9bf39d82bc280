"""The engine turned by hand on a driven clock: long prompts beside running completions in chunks, rounds between them,
and whose turn it is. No thread, no sleep.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from cloud_gateway.core.policies.policy import MIN_BATCH, Action, Costs, LinkView, Verify, catch_up_batch, draft_costs
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model import Work
from edgespec.core.drafting.ranking import Asked
from tests.support.engines import engine_settings
from tools.doubles.engines import TableDraft, TableTarget

TOKEN_S = 0.004
PASS_S = 0.060
"""A token of a prompt, and a pass over a few rows: about the demo's on a busy core."""
PROMPT = [1 + i % 30 for i in range(2586)]


class Timed(TableTarget):
    """Moves a clock by what it computes, and notes when."""

    def __init__(self) -> None:
        super().__init__(slots=6, context=4096, pass_s=PASS_S)
        self.now = 0.0
        self.sleep = self._advance
        self.calls: list[tuple[str, int, float, float]] = []
        """Kind, slot or number of requests, begin and end."""

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        super().prefill(slot, tokens)
        self._noted("chunk", slot, lambda: self._advance(TOKEN_S * len(tokens)))

    def verify(self, batch: Sequence[Work]) -> list[Any]:
        return self._noted("round", len(batch), lambda: super(Timed, self).verify(batch))

    def time(self) -> float:
        self.now += 1e-6
        return self.now

    def _noted(self, kind: str, what: int, compute: Any) -> Any:
        began = self.now
        found = compute()
        self.calls.append((kind, what, began, self.now))
        return found

    def _advance(self, seconds: float) -> None:
        self.now += seconds


class TimedDraft(TableDraft):
    """Moves the target's clock: a step takes a tenth of a target pass, a token of a batch a fortieth."""

    def __init__(self, target: Timed) -> None:
        super().__init__(right=0.9)
        self.step_s = PASS_S / 10
        self.token_s = PASS_S / 40
        self._target = target

    def catch_up(self, request: Hashable, limit: int) -> int:
        began = self._target.now
        before = self.backlog(request)
        left = super().catch_up(request, limit)
        self._target.now += (before - left) * self.token_s
        self._target.calls.append(("reading", before - left, began, self._target.now))
        return left

    def draft(self, asked: Sequence[Asked]) -> list[Any]:
        self._target.now += self.step_s + sum(self.backlog(one.request) - 1 for one in asked) * self.token_s
        return super().draft(asked)


def started(prompts: Sequence[Sequence[int]], tokens: int = 400, **settings: Any) -> tuple[Engine, Timed]:
    target = Timed()
    engine = Engine(target, None, engine_settings(policy="plain", **settings), clock=target.time)
    for prompt in prompts:
        submit(engine, prompt, tokens)
    return engine, target


def submit(engine: Engine, prompt: Sequence[int], tokens: int = 20, **more: Any) -> None:
    engine.submit(GenerationRequest(list(prompt), tokens, ignore_eos=True, **more))


def turn(engine: Engine, target: Timed, count: int) -> None:
    for _ in range(count):
        wake = engine.turn()
        target.now = max(target.now, wake or 0.0)


def test_a_long_prompt_costs_others_at_most_half_and_one_chunk() -> None:
    engine, target = started([[3, 1], [4, 1], [5, 9]])
    turn(engine, target, 20)
    target.calls.clear()
    submit(engine, PROMPT, 20)
    turn(engine, target, 250)
    last = max(i for i, call in enumerate(target.calls) if call[0] == "chunk")
    calls = target.calls[: last + 2]
    ends = [end for kind, _, _, end in calls if kind == "round"]
    gaps = [later - sooner for sooner, later in itertools.pairwise(ends)]
    assert len([call for call in calls if call[0] == "chunk"]) > 2586 * TOKEN_S / 0.250
    assert max(gaps) < 0.250 + PASS_S + 0.01, "one chunk and one round"
    assert len(gaps) / sum(gaps) > 0.5 / PASS_S * 0.95, "half of their speed"


def test_a_prompt_that_is_alone_is_read_in_whole_chunks() -> None:
    engine, target = started([PROMPT[:1000]])
    turn(engine, target, 12)
    chunks = [end - began for kind, _, began, end in target.calls if kind == "chunk"]
    assert chunks[:-1] == pytest.approx([128 * TOKEN_S] * 7)


def test_prompts_of_one_moment_are_read_before_the_first_of_them_goes_on() -> None:
    """With a round between two chunks, none longer than four of the others: not at half speed, as beside older ones."""
    engine, target = started([PROMPT[:600]] * 4)
    turn(engine, target, 40)
    last = max(i for i, call in enumerate(target.calls) if call[0] == "chunk")
    chunks = [end - began for kind, _, began, end in target.calls[: last + 1] if kind == "chunk"]
    rounds = [end for kind, _, _, end in target.calls[: last + 2] if kind == "round"]
    assert sum(chunks) == pytest.approx(4 * 599 * TOKEN_S, rel=1e-3)
    assert target.calls[last][3] < sum(chunks) + len(chunks) * PASS_S
    assert len(rounds) > 2 and max(b - a for a, b in itertools.pairwise(rounds)) < 1.0 + PASS_S + 0.01
    target.calls.clear()
    submit(engine, PROMPT, 20)
    turn(engine, target, 60)
    assert max(end - began for kind, _, began, end in target.calls if kind == "chunk") < 0.251, "it came later"


def test_chunks_follow_each_other_where_nothing_else_runs() -> None:
    engine, target = started([PROMPT])
    turn(engine, target, 60)
    chunks = [call for call in target.calls if call[0] == "chunk"]
    assert sum(end - began for _, _, began, end in chunks) == pytest.approx(2585 * TOKEN_S, rel=1e-3)
    assert all(later[2] - sooner[3] < 1e-3 for sooner, later in itertools.pairwise(chunks))


def test_prompts_take_turns() -> None:
    engine, target = started([[3, 1], PROMPT, PROMPT[:1000]])
    turn(engine, target, 60)
    slots = [slot for kind, slot, _, _ in target.calls if kind == "chunk"]
    assert slots[:13] == [0, *[1, 2] * 6]


def test_short_prompts_that_keep_coming_do_not_keep_a_long_one_unread() -> None:
    """New requests have higher numbers than the one that had the latest chunk."""
    engine, target = started([[3, 1]], queue_limit=1000)
    turn(engine, target, 3)
    submit(engine, PROMPT)
    for _ in range(120):
        submit(engine, [5] * 40, 1)
        submit(engine, [6] * 40, 1)
        turn(engine, target, 1)
    chunks = [slot for kind, slot, _, _ in target.calls if kind == "chunk"]
    assert chunks.count(1) >= len(chunks) // 6, "five prompts take turns"


def alone(
    tokens: int, prompt: Sequence[int] = PROMPT[:800], requests: int = 1, *, drafts: bool = True
) -> tuple[Timed, float]:
    """Completions of `adaptive` without a worker, at once, and the seconds that they took."""
    target = Timed()
    local = TimedDraft(target) if drafts else None
    engine = Engine(
        target, local, engine_settings(policy="adaptive"), None, target.time,
        curve={1: PASS_S, 32: PASS_S},
    )  # fmt: skip
    for _ in range(requests):
        submit(engine, prompt, tokens)
    while engine.active or engine.queued:
        turn(engine, target, 1)
    return target, target.now


def first_round(target: Timed) -> int:
    return next(i for i, call in enumerate(target.calls) if call[0] == "round")


def test_without_a_worker_the_draft_reads_first_where_that_pays() -> None:
    target, seconds = alone(120)
    before = [call for call in target.calls[: first_round(target)] if call[0] == "reading"]
    assert sum(call[1] for call in before) == 799
    assert all(call[1] <= 128 for call in before), "in chunks, as the target"
    assert seconds < 0.95 * alone(120, drafts=False)[1], "with all that it reads"


@pytest.mark.parametrize(("tokens", "requests"), [(10, 1), (120, 6)])
def test_the_draft_does_not_read_first_for_few_tokens_or_for_many_requests(tokens: int, requests: int) -> None:
    target, _ = alone(tokens, requests=requests)
    assert not any(call[0] == "reading" for call in target.calls[: first_round(target)])


def verifies_of(monkeypatch: pytest.MonkeyPatch) -> list[Costs]:
    """The costs that policies received for each decision to verify from now on."""
    seen: list[Costs] = []
    decide = Generation.decide

    def noted(generation: Generation, link: LinkView | None, costs: Costs, now: float) -> Action:
        action = decide(generation, link, costs, now)
        if isinstance(action, Verify):
            seen.append(costs)
        return action

    monkeypatch.setattr(Generation, "decide", noted)
    return seen


def test_policies_receive_the_time_in_which_prompts_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, target = started([[3, 1]])
    turn(engine, target, 4)
    submit(engine, PROMPT[:200], 10)
    seen = verifies_of(monkeypatch)
    turn(engine, target, 40)
    assert seen[0].paused_s < 2 * TOKEN_S and seen[-1].paused_s == pytest.approx(200 * TOKEN_S, rel=0.01)


def test_policies_receive_the_rows_of_others_that_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Timed()
    engine = Engine(target, TableDraft(1.0), engine_settings(policy="local-chain", k=2), clock=target.time)
    verifies = verifies_of(monkeypatch)
    for prompt in ([3], [4], [5]):
        submit(engine, prompt, 60)
    turn(engine, target, 30)
    assert {call[1] for call in target.calls} == {3}, "all in one pass"
    assert [costs.other_rows for costs in verifies[:3]] == [2, 4, 6], "as decided, and one before"


SHORT = [3, 1, 4]


class Counted(TableTarget):
    """Notes what it was asked, and says that a pass took 30 ms and one for each row."""

    def __init__(self, slots: int = 4) -> None:
        super().__init__(slots=slots, pass_s=lambda rows: 0.030 + 0.001 * rows)
        self.sleep = lambda seconds: None
        self.calls: list[tuple[str, Any]] = []

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        self.calls.append(("prefill", len(tokens)))
        super().prefill(slot, tokens)

    def verify(self, batch: Sequence[Work]) -> list[Any]:
        self.calls.append(("verify", [len(work.tree) for work in batch]))
        return super().verify(batch)


def turned(local: TableDraft | None = None, slots: int = 4, **settings: Any) -> tuple[Engine, Counted]:
    target = Counted(slots)
    times = iter(range(10**9))
    return Engine(target, local, engine_settings(**settings), clock=lambda: next(times) * 1e-4), target


@pytest.mark.parametrize(
    ("verify_s", "token_s", "tokens"), [(0.031, 0.004, 7), (0.001, 0.004, MIN_BATCH), (0.03, 0, 30_000)]
)
def test_a_catch_up_batch_takes_about_a_pass_of_the_target(verify_s: float, token_s: float, tokens: int) -> None:
    assert catch_up_batch(lambda rows: verify_s, token_s) == tokens
    costs = draft_costs(lambda rows: verify_s, 0.005, 10, token_s, 4)
    assert (costs.local_backlog_s, costs.batch_backlog_s) == (10 * token_s, tokens * token_s)


def test_the_cost_curve_is_learnt_over_all_rows_of_a_pass() -> None:
    engine, target = turned(TableDraft(1.0), policy="local-chain", k=2)
    for i in range(4):
        submit(engine, [7, i, 2], 30)
    for _ in range(40):
        engine.turn()
    passes = {sum(rows) for kind, rows in target.calls if kind == "verify"}
    assert max(passes) >= 2 * 3, "several requests in one pass"
    points = {rows: seconds for rows, seconds in engine._verify_s.points().items() if rows in passes}
    assert points == {rows: pytest.approx(0.030 + 0.001 * rows) for rows in passes}


def test_requests_that_are_ready_do_not_wait_for_fewer_that_draft() -> None:
    engine, target = turned(TableDraft(0.7), policy="local-chain", k=3)
    submit(engine, SHORT)
    for token in (8, 9):
        submit(engine, [token, token], speculation=Speculation(policy="plain"))
    for _ in range(15):
        engine.turn()
    without = [rows for kind, rows in target.calls if kind == "verify" and rows == [1, 1]]
    assert len(without) > 3, "the plain ones do not wait for the other's drafts"


def test_after_a_failed_pass_each_request_has_one_of_its_own() -> None:
    engine, target = turned(policy="plain")
    for prompt in ([3], [4], [5]):
        submit(engine, prompt)
    verify = target.verify
    failed = list[int]()

    def fails_once(batch: Sequence[Work]) -> list[Any]:
        if not failed:
            failed.append(len(batch))
            raise RuntimeError
        return verify(batch)

    target.verify = fails_once  # type: ignore[method-assign]
    for _ in range(4):
        engine.turn()
    assert failed == [3] and [len(batch) for _, batch in target.calls][:4] == [1, 1, 1, 3]
