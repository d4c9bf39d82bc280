"""How the worker's loop spends its time: batches, shares, frames; stepped by hand, with a clock that counts rows."""

from __future__ import annotations

import math
from pathlib import Path

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.best_first import BestFirstRule, Starts
from edgespec.core.drafting.together import FIRST_BATCH, MAX_BATCH_S, DraftCurve
from edgespec.core.drafting.tree import BranchShare
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.inflow import Bucket
from edgespec.core.protocol.messages import Commit, Decline, Open, Sampling, Share, StepTimes, Tree
from edgespec.llamacpp.drafter import Drafter
from edgespec.worker.daemon import Daemon, Outlet

PROMPT = [5, 6, 7, 8, 9]


def opened(request: int = 1, prompt: list[int] = PROMPT) -> Open:
    return Open(request, 1, len(prompt), prompt, Sampling())


def by_hand(model: Path, **options: object) -> tuple[Daemon, list[Tree | StepTimes | Decline]]:
    """A daemon without a thread, to be stepped; each row that its model evaluates takes 1/256 s."""
    drafter = Drafter(model, context=2048, sequences=4, prefill_batch=256)
    sent: list[Tree | StepTimes | Decline] = []

    rule = BestFirstRule(sequences=4, max_depth=16)
    outlet = Outlet(sent.extend, sent.append)
    daemon = Daemon(drafter, Starts(rule), outlet, clock=lambda: drafter.rows / 256, **options)
    return daemon, sent


def step(daemon: Daemon) -> tuple[dict[int, int], int]:
    """One turn: the leaves of each request, and the rows that it evaluated."""
    daemon._take_in()
    work = daemon._next()
    before = daemon.drafter.rows
    assert work
    daemon._draft(work)
    return {drafting.request: len(leaves) for drafting, leaves in work}, daemon.drafter.rows - before


def test_a_long_prompt_is_read_in_batches_of_a_tenth_of_a_second(model: Path) -> None:
    daemon, _ = by_hand(model)
    daemon.take(opened(1, [token % 60 for token in range(300)]))
    turns = [step(daemon) for _ in range(16)]
    reading = [rows for leaves, rows in turns if leaves == {1: 0}]
    assert reading[0] == FIRST_BATCH and set(reading[1:]) == {int(MAX_BATCH_S * 256)}
    assert 0 < sum(reading) <= 300 and turns[-1][0][1]
    daemon.drafter.shutdown()


def test_while_a_prompt_is_read_the_other_request_gets_half_the_model(model: Path) -> None:
    daemon, _ = by_hand(model)
    daemon.take(opened(1))
    for _ in range(3):
        step(daemon)
    daemon.take(opened(2, [token % 60 for token in range(400)]))
    turns = [step(daemon) for _ in range(40)]
    first, second = (sum(rows for leaves, rows in turns if number in leaves) for number in (1, 2))
    assert 0.7 < first / second < 1.4
    daemon.drafter.shutdown()


def test_step_times_are_reported_when_steps_take_longer(model: Path) -> None:
    daemon, sent = by_hand(model, curve=DraftCurve({1: 1 / 256, 4: 4 / 256}))
    daemon.take(opened())
    for _ in range(6):
        step(daemon)
    assert sent == [], "as measured at start"
    daemon.clock = lambda: daemon.drafter.rows / 64
    step(daemon)
    (report,) = sent
    assert isinstance(report, StepTimes) and report.leaves == [1, 4] and report.micros[0] > 4800
    daemon.drafter.shutdown()


def test_nodes_share_a_frame_while_a_pass_of_the_gateway_runs(model: Path) -> None:
    daemon, sent = by_hand(model, curve=DraftCurve({1: 1 / 256, 4: 4 / 256}))
    daemon.take(opened())
    for _ in range(4):
        step(daemon)
        daemon._send_due(math.inf)
        daemon.writable()
    before = len(sent)
    assert before == 4, "no pass was stated yet"
    token = sent[0].tokens[0]
    digest = prefix_hash([*PROMPT, token])
    daemon.take(Commit(1, 1, len(PROMPT), [token], digest, 1_000_000, 1_000_000, 3))
    for _ in range(8):
        step(daemon)
        daemon._send_due(daemon.clock() + 0.02)
        daemon.writable()
    assert len(sent) - before <= 2
    daemon.drafter.shutdown()


def test_frames_beyond_the_rate_wait_and_their_nodes_share_the_next(model: Path) -> None:
    daemon, sent = by_hand(model)
    daemon.outlet.rate = Bucket(1.0, 2)
    daemon.take(opened())
    for _ in range(6):
        step(daemon)
        daemon._send_due(math.inf)
        daemon.writable()
    assert daemon.clock() < 0.5 and len(sent) == 3, "the burst, and one that has to be paid back"
    daemon.clock = lambda: 10.0
    daemon._send_due(math.inf)
    tree = CandidateTree(PROMPT)
    assert all(tree.merge("w", frame, "w").fresh == len(frame.tokens) for frame in sent)
    assert len(sent) == 4 and len(tree.tree) == len(daemon._requests[1].tree), "nothing is lost"
    daemon.drafter.shutdown()


def test_a_share_is_taken_and_one_of_another_epoch_or_range_is_not(model: Path) -> None:
    daemon, _ = by_hand(model)
    daemon.take(opened())
    for body, part in [
        (Share(1, 9, 1, 2), BranchShare()), (Share(7, 1, 1, 2), BranchShare()), (Share(1, 1, 2, 2), BranchShare()),
        (Share(1, 1, 1, 2), BranchShare(1, 2)), (Share(1, 1, 0, 1), BranchShare()),
    ]:  # fmt: skip
        daemon.take(body)
        step(daemon)
        assert daemon._requests[1].part == part, body
