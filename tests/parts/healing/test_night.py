"""The process that learns from kept texts: what it reads and keeps, its priority, and how fast it stops."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from edgespec.core.errors import ConfigError
from edgespec.llamacpp.drafter import Drafter
from edgespec.parts.healing import night, store
from edgespec.parts.healing.collector import Collected
from edgespec.parts.healing.store import DRAFT, KeptLimits, LearningStore
from edgespec.parts.healing.trainer import Trainer
from edgespec.shared.files import write_private
from edgespec.shared.models import model_digest
from edgespec.shared.procstat import schedstat_s
from edgespec.shared.vocabfiles import gguf_vocabulary
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.until import until

SCOPE = "key AnnAnn01"
VOCAB = 64


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "draft.gguf", vocab=VOCAB, layers=1)


def texts_of_a_target(folder: Path, draft: Path, count: int) -> Path:
    """Keeps texts that another tiny model writes; returns the scope's folder."""
    target = Drafter(make_tiny_gguf(folder / "target.gguf", seed=7, vocab=VOCAB), threads=1)
    kept = LearningStore(folder / "learning", b"g" * 32, KeptLimits(2**24, 7))
    digest = gguf_vocabulary(draft).digest
    for number in range(count):
        tokens = [int(token) for token in np.random.default_rng(number).integers(5, VOCAB, 4)]
        target.open("text", tokens)
        for _ in range(24):
            token = target.step("text", [()], 1)[0].tokens[0]
            tokens.append(token)
            target.commit("text", [token])
        target.close("text", keep=False)
        kept.add(Collected("AnnAnn01", SCOPE, tokens, 4), digest)
    target.shutdown()
    return folder / "learning" / store.scope_name(SCOPE)


def test_a_draft_that_is_right_more_often_on_other_texts_is_kept(
    draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night, "RATE", 0.02)
    monkeypatch.setattr(night, "REUSE", 12.0)
    scope = texts_of_a_target(tmp_path, draft, 60)
    said = night.learn_from(scope, draft, lambda: False)
    (trial,) = store.learnt_drafts(tmp_path / "learning")
    assert trial.trial.after > trial.trial.before
    assert "it is kept" in said
    assert trial.path == scope / DRAFT
    assert (scope / DRAFT).stat().st_mode & 0o777 == 0o600
    texts = b"".join(path.read_bytes() for path in store.kept_files(tmp_path / "learning"))
    assert texts[-60:] not in (scope / f"{DRAFT}.state").read_bytes()


def test_a_draft_that_is_not_better_is_not_used(draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night, "RATE", 0.0)
    scope = texts_of_a_target(tmp_path, draft, 40)
    assert "it is not kept" in night.learn_from(scope, draft, lambda: False)
    (trial,) = store.learnt_drafts(tmp_path / "learning")
    assert trial.path is None
    assert not (scope / DRAFT).exists()


def test_it_goes_on_where_it_was_stopped(draft: Path, tmp_path: Path) -> None:
    scope = texts_of_a_target(tmp_path, draft, 40)
    steps = iter(range(100))
    assert night.learn_from(scope, draft, lambda: next(steps) >= 3) == "stopped after step 3"
    steps = iter(range(100))
    assert night.learn_from(scope, draft, lambda: next(steps) >= 2) == "stopped after step 5"
    learnt_from, _ = night.passages_in(list(store.texts_of(scope)), VOCAB)
    night.learn_from(scope, draft, lambda: False)
    (result,) = store.learnt_drafts(tmp_path / "learning")
    assert result.trial.step == math.ceil(night.REUSE * len(learnt_from) / night.BATCH), "stops do not count"


def test_a_kept_draft_goes_with_the_draft_that_it_was_made_of(
    draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night, "RATE", 0.0)
    scope = texts_of_a_target(tmp_path, draft, 40)
    (scope / DRAFT).write_bytes(draft.read_bytes())
    former = store.Learnt(0, model_digest(draft).hex(), 0, 40, 0.1, 0.2, kept=True)
    write_private(scope / store.LEARNT, msgspec.json.encode(former))
    night.learn_from(scope, draft, lambda: False)
    assert (scope / DRAFT).exists(), "of this draft, and no new one is better"

    other = make_tiny_gguf(tmp_path / "other.gguf", seed=3, vocab=VOCAB, layers=2)
    night.learn_from(scope, other, lambda: False)
    assert not (scope / DRAFT).exists()


def test_texts_of_another_tokenizer_or_outside_it_are_not_learnt_from(draft: Path, tmp_path: Path) -> None:
    scope = texts_of_a_target(tmp_path, draft, 40)
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=80)
    with pytest.raises(ConfigError, match="another tokenizer"):
        night.learn_from(scope, other, lambda: False)
    learnt_from, held = night.passages_in(list(store.kept_files(tmp_path / "learning")), 3)
    assert not learnt_from and not held


async def test_the_process_is_lowered_and_gone_within_a_second_of_the_owner(draft: Path, tmp_path: Path) -> None:
    texts_of_a_target(tmp_path, draft, 60)
    away = [True]
    trainer = Trainer(tmp_path / "learning", lambda: draft, lambda: away[0], ThreadPoolExecutor(1))
    running = asyncio.ensure_future(trainer.run())
    try:
        await until(lambda: is_lowered(trainer.pid), timeout_s=60)
        pid = trainer.pid
        assert pid is not None
        away[0] = False
        await asyncio.sleep(1.0)
        before = latest = schedstat_s(pid, 0)
        began = time.monotonic()
        while trainer.pid is not None and time.monotonic() < began + 20:
            latest = max(latest, schedstat_s(pid, 0))
            await asyncio.sleep(0.02)
        # On a machine that others keep busy it may take longer until it is gone, but it computes nothing any more.
        assert latest - before < 0.2
        assert trainer.pid is None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_process_learns_and_ends_by_itself(draft: Path, tmp_path: Path) -> None:
    scope = texts_of_a_target(tmp_path, draft, 40)
    program = (
        "import sys; from pathlib import Path; from edgespec.parts.healing import night; "
        "night.lowered = lambda: None; sys.exit(night.main(Path(sys.argv[1]), Path(sys.argv[2])))"
    )  # at the lowest priority it would end when the machine has time
    command = [sys.executable, "-c", program, str(scope), str(draft)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait(60) == 0
    assert said.startswith("a draft that learnt from")


async def test_a_process_that_is_being_started_is_killed_too(
    draft: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scope = texts_of_a_target(tmp_path, draft, 60)

    def consent_ends() -> Path:
        trainer.kill()
        return draft

    trainer = Trainer(tmp_path / "learning", consent_ends, lambda: True, ThreadPoolExecutor(1))
    running = asyncio.ensure_future(trainer.run())
    try:
        await until(lambda: "learning was stopped" in caplog.text, timeout_s=60)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not (scope / f"{DRAFT}.state").exists()
    trainer.wait_until_gone()
    assert trainer.pid is None


def is_lowered(pid: int | None) -> bool:
    """Whether a process has the lowest priority, and one core."""
    if pid is None:
        return False
    idle = os.sched_getscheduler(pid) == os.SCHED_IDLE
    return idle and os.getpriority(os.PRIO_PROCESS, pid) == 19 and len(os.sched_getaffinity(pid)) == 1
