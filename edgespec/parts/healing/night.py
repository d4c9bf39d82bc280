"""The child process of `trainer.py`: it learns from the kept texts of one scope, on one core, at the lowest priority.

    python -m edgespec.parts.healing.night SCOPE DRAFT

It goes on where the last one stopped. When it has learnt from each text REUSE times since the last trial, two drafts,
the one kept so far and the new one, are tried on the texts that are held back: one of eight, which nothing was learnt
from. The new one is kept only if it is right more often there. Standard output gets one sentence. It ends at SIGTERM,
after a state was saved, or when its standard input does, as it does if the worker is killed.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from edgespec.core.errors import ConfigError, EdgespecError
from edgespec.parts.healing import measuring, output, state
from edgespec.parts.healing.command import asked_to_end
from edgespec.parts.healing.course import BATCH, REUSE, Course, fresh
from edgespec.parts.healing.prompts import MAX_PROMPT
from edgespec.parts.healing.store import (
    DRAFT,
    LEARNT,
    Learnt,
    read_learnt,
    read_scope,
    read_text,
    texts_of,
)
from edgespec.parts.healing.student import Dimensions, Student, read_weights, written_formats
from edgespec.parts.healing.target import Passage
from edgespec.shared.files import write_private
from edgespec.shared.models import model_digest
from edgespec.shared.vocabfiles import gguf_vocabulary

HELD_BACK = 8
"""One text of so many is held back."""
MIN_HELD = 2
MAX_HELD = 32
MAX_TRIED = 96
"""Latest texts of a trial, and tokens of each: 6,000 steps of both drafts, a minute or two for a small one."""
MAX_WRITTEN = 512
"""Tokens of a completion that are learnt from: what a step takes grows with the square of a text."""
SAVE_S = 60.0
RANK = 16
RATE = 1e-3
SEED = 1


def learn_from(scope: Path, draft: Path, stop: Callable[[], bool], clock: Callable[[], float] = time.time) -> str:
    """Learns until every text was learnt from, or until `stop`; returns a sentence. Raises EdgespecError."""
    vocabulary = gguf_vocabulary(draft)
    about = read_scope(scope)
    if about is None or about.tokenizer != vocabulary.digest.hex():
        raise ConfigError("the texts are in tokens of another tokenizer than the draft's, so it cannot learn from them")

    paths = sorted(texts_of(scope), key=lambda path: path.name)
    learnt_from, held = passages_in(paths, len(vocabulary.entries))
    if len(held) < MIN_HELD or len(learnt_from) < BATCH:
        raise ConfigError("there are too few texts to learn from and to try a draft on")

    settings = _settings(draft)
    course = _course(scope, settings, draft, learnt_from)
    began = _tried_at(scope, course)
    steps = math.ceil(REUSE * len(learnt_from) / BATCH)
    saved_at = time.monotonic()
    while course.counts.step < began + steps and not stop():
        course.step((course.counts.step - began) / steps)
        if time.monotonic() >= saved_at + SAVE_S:
            _save(scope, settings, course)
            saved_at = time.monotonic()
    _save(scope, settings, course)
    if stop():
        return f"stopped after step {course.counts.step}"
    return _tried(scope, draft, course, held, int(clock()))


def passages_in(paths: Sequence[Path], vocabulary: int) -> tuple[list[Passage], list[Passage]]:
    """The texts to learn from, and those held back. What does not fit is left out."""
    learnt_from: list[Passage] = []
    held: list[Passage] = []
    for path in paths:
        text = read_text(path)
        if text is None or text.prompt > MAX_PROMPT or max(text.tokens) >= vocabulary:
            continue

        tokens = np.array(text.tokens[: text.prompt + MAX_WRITTEN], np.int32)
        written = tokens[text.prompt :, None]
        passage = Passage(
            tokens,
            written,
            np.zeros(written.shape, np.float32),
        )
        if zlib.crc32(path.name.encode()) % HELD_BACK == 0:
            held.append(passage)
        else:
            learnt_from.append(passage)
    return learnt_from, held


def _tried_at(scope: Path, course: Course) -> int:
    """The step of the last trial: what was learnt since then counts, however often the process was stopped."""
    trial = read_learnt(scope)
    if trial is None:
        return 0
    return min(trial.step, course.counts.step)


def _course(scope: Path, settings: state.Settings, draft: Path, texts: Sequence[Passage]) -> Course:
    """The student as it was left, with these texts. They are read again each time: some may have been deleted."""
    weights = read_weights(draft)
    student = Student(
        Dimensions.of(draft),
        weights,
        weights,
        written_formats(draft, weights, None),
        RANK,
        SEED,
    )
    saved = fresh()
    path = _state(scope)
    if path.exists():
        try:
            saved = state.resumed(path, settings)
        except ConfigError:  # of another draft, or damaged: what it learnt is learnt again
            path.unlink()

    course = Course(student, saved, RATE)
    course.add(texts, 0)
    return course


def _settings(draft: Path) -> dict[str, str | int]:
    return {"draft": model_digest(draft).hex(), "rank": RANK, "seed": SEED}


def _state(scope: Path) -> Path:
    return scope / f"{DRAFT}.state"


def _save(scope: Path, settings: state.Settings, course: Course) -> None:
    """Parameters alone: the texts have files of their own, which are deleted by themselves."""
    whole = course.saved()
    state.save(
        _state(scope),
        settings,
        state.Saved(
            whole.counts,
            [],
            [],
            [],
            whole.tensors,
        ),
    )


def _tried(
    scope: Path,
    draft: Path,
    course: Course,
    held: Sequence[Passage],
    now: int,
) -> str:
    """Writes the new draft, tries it beside the one kept so far, and keeps the better one."""
    made = scope / f".{DRAFT}.part"
    kept = scope / DRAFT
    digest = model_digest(draft).hex()
    former = read_learnt(scope)
    if former is None or former.draft != digest:
        kept.unlink(missing_ok=True)  # made of another draft, so of other shapes maybe
    in_use = draft
    if kept.exists():
        in_use = kept
    try:
        output.write(draft, made, course.student)
        made.chmod(0o600)
        # Both have the same formats and shapes, and so the same step time: only what is right counts.
        tried = [_shortened(passage) for passage in held[-MAX_HELD:]]
        before, after = measuring.measured_both(in_use, made, tried, 1)
        better = after.right > before.right
        if better:
            made.replace(kept)
    finally:
        made.unlink(missing_ok=True)

    texts = len(course.passages)
    found = Learnt(
        now,
        digest,
        course.counts.step,
        texts,
        before.right,
        after.right,
        better or in_use == kept,
    )
    write_private(scope / LEARNT, msgspec.json.encode(found))
    said = "it is kept" if better else "it is not kept"
    return f"a draft that learnt from {texts} texts is right {after.right:.3f} for {before.right:.3f}: {said}"


def _shortened(passage: Passage) -> Passage:
    """The prompt and the first MAX_TRIED tokens of the completion."""
    written = passage.ranked[:MAX_TRIED]
    prompt = len(passage.prompt)
    return Passage(
        passage.tokens[: prompt + len(written)],
        written,
        passage.log_probs[:MAX_TRIED],
    )


def lowered() -> None:
    """Gives this process the lowest priority on one core, before torch starts threads. It is the first to be ended if
    the machine has no memory left."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)


def _ends_with_input() -> None:
    """Ends the process when nobody holds the other end of its standard input any more."""
    while os.read(0, 1):  # `sys.stdin` has a lock, which the end of the interpreter would wait for
        pass
    os._exit(1)


def main(scope: Path, draft: Path) -> int:
    """Returns the exit code; both sentences name no text."""
    lowered()
    threading.Thread(target=_ends_with_input, daemon=True).start()
    try:
        with asked_to_end() as asked:
            print(learn_from(scope, draft, lambda: bool(asked)), flush=True)
    except (EdgespecError, OSError) as error:  # OSError also if a consent ended and the folder is gone
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
