"""Drafts in company: how many pay by what steps took, against the same batches without drafts and with all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from edgespec_vllm.board import Board
from edgespec_vllm.hook import Hook
from edgespec_vllm.line import Line
from edgespec_vllm.messages import Chain, Want
from edgespec_vllm.price import AGAIN, TRIALS, BatchLimits, Chances, RowPrice

from integrations.vllm.tests.boards import MAX_LEN, VOCAB, Link, hook, request

PLAIN_S = 0.050
ROW_S = 0.012
"""Seconds of a row beyond FREE_ROWS, as on a CPU: eight requests take 96 ms more with a draft each."""
DRAFTS = 4
Rule = Callable[[RowPrice, int, Sequence[Sequence[float]]], Sequence[int]]


def step_s(requests: int, drafts: int, noise: random.Random) -> float:
    """A step of an engine whose rows cost."""
    return (PLAIN_S + ROW_S * (requests + drafts)) * noise.uniform(0.95, 1.05)


def tokens_a_second(rule: Rule, requests: int, right: float, steps: int = 1000) -> float:
    """An engine whose requests always have DRAFTS drafts, each right with this probability."""
    noise = random.Random(5)
    price = RowPrice()
    every = Chances()
    records = [Chances(every) for _ in range(requests)]
    chances = [1.0] * DRAFTS
    tokens = 0
    seconds = 0.0
    for _ in range(steps):
        counts = rule(price, requests, [record.survival(chances) for record in records])
        took_s = step_s(requests, sum(counts), noise)
        price.measured(requests, sum(counts), took_s)
        seconds += took_s
        for record, count in zip(records, counts):
            accepted = next((i for i in range(count) if noise.random() >= right), count)
            tokens += 1 + accepted
            if count:
                record.settled(sum(chances[: min(accepted + 1, count)]), accepted)
    return tokens / seconds


def none(_: RowPrice, __: int, survivals: Sequence[Sequence[float]]) -> Sequence[int]:
    return [0] * len(survivals)


def every_draft(_: RowPrice, __: int, survivals: Sequence[Sequence[float]]) -> Sequence[int]:
    return [len(survival) for survival in survivals]


@pytest.mark.parametrize("requests", [1, 2, 4, 8])
@pytest.mark.parametrize("right", [0.3, 0.6, 0.9])
def test_drafts_never_cost_more_than_they_bring(requests: int, right: float) -> None:
    plain = tokens_a_second(none, requests, right)
    priced = tokens_a_second(RowPrice.allowed, requests, right)
    whole = tokens_a_second(every_draft, requests, right)
    assert priced >= 0.97 * plain
    assert priced >= 0.97 * whole


def test_without_a_price_drafts_in_company_do_cost() -> None:
    """The control: the same engine, whose requests always take all drafts."""
    assert tokens_a_second(every_draft, 8, 0.3) < 0.75 * tokens_a_second(none, 8, 0.3)


def test_drafts_are_taken_as_they_come_until_a_batch_size_is_measured_and_now_and_then() -> None:
    price = RowPrice()
    survivals = [[0.1] * DRAFTS] * 8
    counts: list[int] = []
    for _ in range(TRIALS + 2 * AGAIN):
        allowed = price.allowed(8, survivals)
        counts.append(sum(allowed))
        price.measured(8, sum(allowed), PLAIN_S + ROW_S * (8 + sum(allowed)))
    assert counts[:TRIALS] == [32, 0, 16] * (TRIALS // 3)
    assert counts[TRIALS:].count(32) == 1 and counts[TRIALS:].count(0) == 2 * AGAIN - 1
    assert counts[2 * AGAIN] == 32
    assert sum(price.allowed(1, [[0.1] * DRAFTS])) == DRAFTS, "another batch size is measured by itself"


def test_the_likeliest_drafts_of_all_requests_are_taken_first() -> None:
    price = RowPrice()
    for drafts in [0, 8, 4] * TRIALS:
        price.measured(2, drafts, 0.1 + 0.02 * drafts)
    assert price.allowed(2, [[0.9, 0.8, 0.7], [0.3, 0.2, 0.1]]) == [3, 0]


def test_a_step_that_compiles_is_not_measured() -> None:
    price = RowPrice()
    for drafts in [0, 8, 4] * TRIALS:
        price.measured(2, drafts, 0.1)
    price.measured(2, 8, 30.0)
    assert price.allowed(2, [[0.1] * 4, [0.1] * 4]) == [4, 4], "rows are free"


def test_the_first_draft_of_a_step_has_to_pay_for_what_drafts_cost_at_all() -> None:
    price = RowPrice()
    for drafts in [0, 8, 4] * TRIALS:
        price.measured(2, drafts, 0.15 if drafts else 0.1)
    assert price.allowed(2, [[0.1] * 4, [0.1] * 4]) == [0, 0]
    assert price.allowed(2, [[0.9] * 4, [0.1] * 4]) == [4, 4]


def test_trust_is_what_was_right_of_what_was_promised() -> None:
    every = Chances()
    for _ in range(100):
        every.settled(1.0, 0)
    assert Chances(every).trust == every.trust == pytest.approx(8 / 108)
    assert Chances(every).survival([1.0, 0.5]) == pytest.approx([8 / 108, 0.5 * (8 / 108) ** 2])


def test_vllms_own_limits_by_batch_size_hold() -> None:
    limits = BatchLimits([[1, 2, 3], [3, 8, 0], [9, 16, 7]], 4)
    assert [limits.of(size) for size in (1, 2, 3, 8, 9, 17)] == [3, 3, 0, 0, 4, 4]
    assert BatchLimits(None, 4).of(300) == 4


def drafted(link: Link, it: Hook, steps: int, row_s: float, clock: list[float]) -> list[int]:
    """Drafts of each step of a hook with one request, whose rows take so long and whose drafts are all wrong."""
    one = request([1, 2, 3])
    it.opened(one)
    it.committed()
    link.received()
    link.send(Want(1, 3))
    counts: list[int] = []
    for _ in range(steps):
        link.send(Chain(1, len(one.all_token_ids), [5] * DRAFTS, [1] * DRAFTS))
        it.draft([one])
        count = len(one.spec_token_ids)
        counts.append(count)
        clock[0] += 0.05 + row_s * count
        it.took(output(1, count))
        one.all_token_ids.append(6)
        one.num_computed_tokens += 1
        it.committed()
    return counts


def output(requests: int, drafts: int, prompt: int = 0) -> Any:
    """vLLM's `SchedulerOutput`, as far as the hook reads it."""
    names = [str(number) for number in range(requests)]
    return SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 1),
        scheduled_spec_decode_tokens={"0": [5] * drafts} if drafts else {},
        total_num_scheduled_tokens=requests + drafts + prompt,
    )


@pytest.mark.parametrize(("row_s", "stays"), [(0.0, True), (0.02, False)])
def test_the_hook_drafts_only_while_rows_are_worth_it(tmp_path: Any, row_s: float, stays: bool) -> None:
    clock = [1.0]
    link = Link(tmp_path)
    board = Board(Line(link.path), 0, VOCAB, DRAFTS)
    it = Hook(
        board, vocab_size=VOCAB, max_len=10 * MAX_LEN, sampled=False, grammar=lambda *_: [],
        limits=BatchLimits(None, DRAFTS), clock=lambda: clock[0],
    )  # fmt: skip
    counts = drafted(link, it, 40, row_s, clock)
    assert (sum(counts[-20:]) == 20 * DRAFTS) is stays
    assert (sum(counts[-20:]) == 0) is not stays


def test_a_step_that_reads_a_prompt_is_not_measured(tmp_path: Any) -> None:
    link = Link(tmp_path)
    it = hook(link.path)
    one = request([1, 2, 3])
    it.opened(one)
    it.draft([one])
    it.took(output(1, 0, prompt=100))
    assert it._price._of(1).seen == 0
    it.draft([one])
    it.took(output(1, 0))
    assert it._price._of(1).seen == 1
