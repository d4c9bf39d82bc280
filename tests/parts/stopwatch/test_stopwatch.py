"""Step times: stored or assumed ones at first, measured once the machine and the requests leave the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.core.drafting.settings import MAX_STEP_LEAVES
from edgespec.core.drafting.together import DraftCurve
from edgespec.llamacpp.drafter import Drafter
from edgespec.parts.stopwatch import PART, timer
from edgespec.parts.stopwatch.timer import RETRY_S, Stopwatch
from edgespec.worker.config import DraftSection
from edgespec.worker.step_timer import ASSUMED
from tests.support.services import serving_worker, until
from tests.support.tiny_gguf import make_tiny_gguf


@pytest.fixture
def drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drafter]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    drafter = Drafter(make_tiny_gguf(tmp_path / "tiny.gguf"), context=1024, sequences=MAX_STEP_LEAVES)
    yield drafter
    drafter.shutdown()


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread waited for a core, whatever else runs here."""
    monkeypatch.setattr(timer, "waited_s", lambda pid: 0.0)


def nothing_else() -> bool:
    return False


@pytest.mark.usefixtures("quiet")
def test_the_next_start_begins_with_what_this_one_measured(drafter: Drafter) -> None:
    watch = Stopwatch(DraftSection(), drafter)
    assert watch.known() == ASSUMED and watch.wait_s(0.0) == 0
    measured = watch.measure(drafter, 0.0, nothing_else)
    assert measured is not None and watch.measured == measured and watch.wait_s(0.0) is None
    assert Stopwatch(DraftSection(), drafter).known() == measured
    assert Stopwatch(DraftSection(threads=1), drafter).known() == ASSUMED, "other settings have other times"


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("damage", [b"", b"[1]", b'{"2": 0.1}', b'{"1": -1}', b'{"1": 1e999}', b'{"x": 1}'])
def test_a_damaged_file_is_no_curve(drafter: Drafter, damage: bytes, tmp_path: Path) -> None:
    Stopwatch(DraftSection(), drafter).measure(drafter, 0.0, nothing_else)
    (stored,) = (tmp_path / "cache/edgespec/step-times").iterdir()
    stored.write_bytes(damage)
    assert Stopwatch(DraftSection(), drafter).known() == ASSUMED


def test_the_assumed_times_are_a_curve_that_can_be_reported() -> None:
    assert DraftCurve(ASSUMED).report().leaves == list(ASSUMED)


@pytest.mark.usefixtures("quiet")
def test_a_request_ends_a_measurement_after_one_step(drafter: Drafter) -> None:
    watch = Stopwatch(DraftSection(), drafter)
    ids = len(drafter._free)
    passes = drafter.passes
    assert watch.measure(drafter, 0.0, lambda: True) is None
    assert watch.wait_s(0.0) == 0, "due again at the next idle time"
    assert len(drafter._free) == ids and drafter.passes - passes <= 5, "three prompts and one step"


def test_a_measurement_beside_other_programs_is_dropped(drafter: Drafter, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter(range(100))
    monkeypatch.setattr(timer, "waited_s", lambda pid: float(next(waited)))
    watch = Stopwatch(DraftSection(), drafter)
    assert watch.measure(drafter, 7.0, nothing_else) is None
    assert watch.measured is None and watch.known() == ASSUMED and watch.wait_s(7.0) == RETRY_S


@pytest.mark.usefixtures("quiet")
async def test_a_linked_worker_measures_and_reports_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with serving_worker(tmp_path, [PART]) as running:
        await until(lambda: running.service.daemon.timer.status()["timed_step_ms"])
        (worker,) = running.gateway.links.workers()
        await until(lambda: [leaves for leaves, _ in worker.draft_points] not in ([], list(ASSUMED)))
        status = await running.service.commands()["status"]()
        assert status["timed_step_ms"] > 0
        await running.drafts(1)
