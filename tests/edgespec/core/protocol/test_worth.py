"""The answer to "does this worker help?": one sentence for each cause."""

from __future__ import annotations

import pytest

from edgespec.core.protocol.worth import WorkerFigures, figures_of, helps, verdict


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (WorkerFigures(0, 0, 0, 0, 0), "no completion has ended yet in which it drafted"),
        (WorkerFigures(120, 60, 80, 40, 2), "wrote 50% of the tokens (60 of 120): too few to judge"),
        (
            WorkerFigures(2457, 157, 194, 1111, 791),
            "wrote 6% of the tokens (157 of 2457): not worth it now, because 71% of its frames came too late",
        ),
        (
            WorkerFigures(1000, 50, 500, 300, 10),
            (
                "wrote 5% of the tokens (50 of 1000): not worth it now, because the target accepted 10% of the 500 "
                "candidates that were verified"
            ),
        ),
        (
            WorkerFigures(1000, 0, 0, 0, 0),
            "wrote 0% of the tokens (0 of 1000): not worth it now, because none of its frames arrived",
        ),
        (
            WorkerFigures(1000, 0, 0, 9, 1),
            "wrote 0% of the tokens (0 of 1000): not worth it now, because none of its candidates was verified",
        ),
        (
            WorkerFigures(1000, 400, 500, 300, 200),
            "wrote 40% of the tokens (400 of 1000) and so saved 400 passes of the target: it helps",
        ),
        (
            WorkerFigures(1000, 400, 500, 300, 200, spent_ms=60_900, alone_ms=70_000),
            (
                "wrote 40% of the tokens (400 of 1000) in 0.87 of the time that the gateway alone would take and so "
                "saved 400 passes of the target and 9.1 s: it helps"
            ),
        ),
        (
            WorkerFigures(100_000, 40_000, 50_000, 30_000, 200, spent_ms=6_000_000, alone_ms=7_000_000),
            (
                "wrote 40% of the tokens (40000 of 100000) in 0.86 of the time that the gateway alone would take and "
                "so saved 40000 passes of the target and 17 min: it helps"
            ),
        ),
        (
            WorkerFigures(1000, 400, 500, 300, 200, spent_ms=72_000, alone_ms=70_000),
            (
                "wrote 40% of the tokens (400 of 1000) in 1.03 of the time that the gateway alone would take and so "
                "saved 400 passes of the target, but no time: it helps the target, not who waits"
            ),
        ),
    ],
)
def test_each_situation_has_one_sentence(figures: WorkerFigures, sentence: str) -> None:
    assert verdict(figures) == sentence
    assert helps(figures) == (10 * figures.accepted >= max(figures.tokens, 1))


def test_a_worker_has_the_figures_that_its_gateway_sends() -> None:
    figures = WorkerFigures(1000, 400, 500, 300, 200, spent_ms=60_900, alone_ms=70_000)
    assert figures_of(figures.books, figures.times) == figures
    assert figures_of(figures.books).alone_ms == 0, "an older gateway sends counts only"
    assert figures + figures == WorkerFigures(2000, 800, 1000, 600, 400, spent_ms=121_800, alone_ms=140_000)
