"""Engines with the part's rule: the number is measured at the start, and one pass that was held up lowers it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.parts.thread_choice import PART as GATEWAY_PART
from edgespec.parts.thread_choice import FASTEST, PART
from edgespec.parts.thread_choice.chosen import ChosenThreads
from edgespec.shared.part import thread_rule
from tests.support.tiny_tokenizer import EOS_ID
from tests.support.trees import begin, chain


class HeldUp:
    """A `ThreadRule` with two threads: each pass takes a second, of which they compute in none."""

    def __init__(self) -> None:
        self.ticks = itertools.count()
        self.taken: list[int] = []

    def counts(self) -> Sequence[int]:
        return [1, 2]

    def use(self, counts: Sequence[int], take: Callable[[int], object], model: str) -> ChosenThreads:
        def taken(number: int) -> None:
            self.taken.append(number)
            take(number)

        return ChosenThreads(
            counts,
            taken,
            model,
            clock=lambda: float(next(self.ticks)),
            cpu_clock=lambda: 0.0,
            load=lambda now: 0.0,
            cores=2,
        )


def test_both_programs_have_the_rule() -> None:
    assert thread_rule([PART]) is thread_rule([GATEWAY_PART]) is FASTEST


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is nothing to choose with one core")
def test_the_log_has_the_measured_numbers(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        target = LlamaCppTarget(model, eos=frozenset({EOS_ID}), slots=1, context=256, thread_rule=FASTEST)
    assert f"of {len(os.sched_getaffinity(0))} threads (a pass:" in caplog.text
    target.shutdown()


def test_a_pass_that_was_held_up_lowers_the_number_and_changes_no_logits(model: Path) -> None:
    rule = HeldUp()
    target = LlamaCppTarget(model, eos=frozenset({EOS_ID}), slots=1, context=256, thread_rule=rule)
    slot = begin(target, [5, 6, 7])
    before = target.verify([Work(slot, chain(7))])[0].logits(0).copy()
    assert rule.taken[-1] == 1

    rule.ticks = itertools.count(1000)
    target.idle()
    assert rule.taken[-3:-1] == [1, 2], "one pass with each number"
    after = target.verify([Work(slot, chain(7))])[0].logits(0).copy()
    np.testing.assert_array_equal(after, before)
    target.shutdown()
