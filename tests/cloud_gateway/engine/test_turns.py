"""The engine turned by hand on a driven clock: what one turn does, and in which order. No thread, no sleep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cloud_gateway.core.policies.policy import MIN_BATCH, catch_up_batch, draft_costs
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model import Work
from tests.support.engines import engine_settings
from tools.doubles.engines import TableDraft, TableTarget

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


def submit(engine: Engine, prompt: Sequence[int], count: int = 20, **more: Any) -> Any:
    return engine.submit(GenerationRequest(list(prompt), count, ignore_eos=True, **more))


@pytest.mark.parametrize(
    ("verify_s", "token_s", "tokens"), [(0.031, 0.004, 7), (0.001, 0.004, MIN_BATCH), (0.03, 0, 30_000)]
)
def test_a_catch_up_batch_takes_about_a_pass_of_the_target(verify_s: float, token_s: float, tokens: int) -> None:
    assert catch_up_batch(lambda rows: verify_s, token_s) == tokens
    costs = draft_costs(lambda rows: verify_s, 0.005, 10, token_s, 4)
    assert (costs.local_backlog_s, costs.batch_backlog_s) == (10 * token_s, tokens * token_s)


def test_the_cost_curve_is_learnt_over_all_rows_of_a_pass() -> None:
    engine, target = turned(TableDraft(1.0), policy="colocated", k=2)
    for i in range(4):
        submit(engine, [7, i, 2], 30)
    for _ in range(40):
        engine.turn()
    passes = {sum(rows) for kind, rows in target.calls if kind == "verify"}
    assert max(passes) >= 2 * 3, "several requests in one pass"
    points = {rows: seconds for rows, seconds in engine._verify_s.points().items() if rows in passes}
    assert points == {rows: pytest.approx(0.030 + 0.001 * rows) for rows in passes}


def test_requests_that_are_ready_do_not_wait_for_fewer_that_draft() -> None:
    engine, target = turned(TableDraft(0.7), policy="colocated", k=3)
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
    verify, failed = target.verify, list[int]()

    def fails_once(batch: Sequence[Work]) -> list[Any]:
        if not failed:
            failed.append(len(batch))
            raise RuntimeError
        return verify(batch)

    target.verify = fails_once  # type: ignore[method-assign]
    for _ in range(4):
        engine.turn()
    assert failed == [3] and [len(batch) for _, batch in target.calls][:4] == [1, 1, 1, 3]
