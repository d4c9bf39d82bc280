"""`edgespec learn`: from the options to a file that is better, or to a sentence that says why there is none."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec
import torch

from edgespec.core.errors import ConfigError, EdgespecError, ModelError, TokenizerMismatch
from edgespec.parts.healing import measuring, output, state
from edgespec.parts.healing.course import Course, fresh, match_rate
from edgespec.parts.healing.formats import FORMATS
from edgespec.parts.healing.prompts import MAX_PROMPT, divided, read_prompts
from edgespec.parts.healing.student import (
    Dimensions,
    Student,
    Weights,
    alike,
    read_weights,
    require_same,
    written_formats,
)  # fmt: skip
from edgespec.parts.healing.target import Teacher
from edgespec.shared.models import model_digest, resolve_model
from edgespec.shared.part import require_trials
from edgespec.shared.vocabfiles import gguf_vocabulary

TOGETHER = 16
"""Completions that the target writes at once."""
LINE_S = 5.0
SAVE_S = 60.0
LOOK_SHARE = 0.06
"""Seconds between lines and between states; share of the time in which the held-back text is looked at."""
CHECKED = 24
"""Tokens of a held-back text over which the forward pass is compared with llama.cpp."""


class NotBetterError(EdgespecError):
    """The healed draft is not better by the measurement, so it was not kept."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a run."""

    draft: Path
    target: Path
    base: Path | None
    out: Path

    @property
    def state(self) -> Path:
        return self.out.with_name(f"{self.out.name}.state")


def run(args: argparse.Namespace) -> int:
    """Trains, measures, and keeps the result if it is better. Raises EdgespecError."""
    files = checked_files(args)
    settings = common_settings(args, files)
    saved = fresh()
    if args.resume:
        saved = state.resumed(files.state, settings)
    elif files.state.exists():
        raise ConfigError(f"{files.state} is there from an earlier run: add --resume to go on, or remove it.")

    torch.set_num_threads(args.threads or len(os.sched_getaffinity(0)))
    student = make_student(args, files)
    course = Course(student, saved, args.rate)
    Training(args, files, settings, course).train()
    return finished(args, files, course)


def checked_files(args: argparse.Namespace) -> Files:
    """The files, after everything that can be refused at once. Raises ConfigError, ModelError, TokenizerMismatch."""
    for name, least in (("minutes", 0), ("held_back", 1), ("max_tokens", 2), ("rank", 1), ("threads", 0), ("steps", 0)):
        if getattr(args, name) < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}; give at least {least}.")
    if args.format is not None and args.format not in FORMATS:
        raise ConfigError(f"--format is {args.format}; choose one of {', '.join(FORMATS)}.")

    draft = resolve_model(args.draft)
    target = resolve_model(args.target)
    base = None
    if args.base is not None:
        base = resolve_model(args.base)
    difference = gguf_vocabulary(target).difference(gguf_vocabulary(draft))
    if difference is not None:
        raise TokenizerMismatch(
            f"{draft.name} cannot learn from {target.name}: its tokenizer {difference}. Choose a target and a draft "
            "of one tokenizer."
        )

    Dimensions.of(draft)
    out = args.output or draft.with_name(f"{draft.name.removesuffix('.gguf')}.learnt.gguf")
    if out.exists():
        raise ConfigError(f"{out} is there already; remove it, or name another --output.")
    _require_room(out, draft)
    return Files(draft, target, base, out)


def _require_room(out: Path, draft: Path) -> None:
    """Raises ModelError unless the folder of the output has room for two drafts and the state."""
    needed = 4 * draft.stat().st_size
    try:
        free = shutil.disk_usage(out.parent).free
    except OSError as error:
        raise ConfigError(
            f"The folder {out.parent} cannot be used ({error.strerror}); name another --output."
        ) from error
    if free < needed:
        raise ModelError(
            f"{out.parent} has {free / 1e6:.0f} MB left, and a run needs {needed / 1e6:.0f} MB there; make room, or "
            "name another --output."
        )


def common_settings(args: argparse.Namespace, files: Files) -> dict[str, str | int]:
    """The settings that all runs of one output have in common."""
    settings: dict[str, str | int] = {
        "target": model_digest(files.target).hex(),
        "draft": model_digest(files.draft).hex(),
        "format": args.format or "",
        "rank": args.rank,
        "seed": args.seed,
        "max-tokens": args.max_tokens,
        "held-back": args.held_back,
    }
    for name, path in (("prompts", args.prompts), ("held-out", args.held_out), ("base", files.base)):
        settings[name] = ""
        if path is not None:
            settings[name] = model_digest(path).hex()
    return settings


def make_student(args: argparse.Namespace, files: Files) -> Student:
    """The draft with updates of zero, compared with llama.cpp. Raises ModelError."""
    shape = Dimensions.of(files.draft)
    draft = read_weights(files.draft)
    as_it_is = {name: draft.formats[name] for name in draft.projections()}
    if set(as_it_is.values()) <= FORMATS.keys():
        unchanged = Student(
            shape,
            draft,
            draft,
            as_it_is,
            1,
            args.seed,
        )
        vocabulary = len(draft.tensors["token_embd.weight"])
        require_same(
            unchanged,
            files.draft,
            [(1 + 397 * place) % vocabulary for place in range(CHECKED)],
        )

    formats = written_formats(files.draft, draft, args.format)
    return Student(
        shape,
        draft,
        _base(files, draft),
        formats,
        args.rank,
        args.seed,
    )


def _base(files: Files, draft: Weights) -> Weights:
    """The weights to start from: `--base`, else the target if it has the same ones, else the draft."""
    if files.base is not None:
        base = read_weights(files.base)
        if not alike(draft, base):
            raise ConfigError(f"--base {files.base.name} has other matrices than {files.draft.name}; leave it out.")
        return base

    try:
        target = read_weights(files.target)
    except ModelError:
        return draft  # of a family that is not computed here, so not the draft's
    if alike(draft, target):
        show_progress(f"{files.draft.name} has the matrices of {files.target.name}, whose weights it starts from")
        return target
    return draft


class Training:
    """The time, prompts and progress of one run."""

    def __init__(
        self,
        args: argparse.Namespace,
        files: Files,
        settings: state.Settings,
        course: Course,
    ) -> None:
        self._args = args
        self._files = files
        self._settings = settings
        self._course = course
        self._prompts: list[str] = []
        self._match_rate = 0.0
        self._next_line = 0.0
        self._next_save = time.monotonic() + SAVE_S
        self._next_look = 0.0

    def train(self) -> None:
        """Writes and learns until the budget is spent, and saves the state. Raises EdgespecError; KeyboardInterrupt
        after the state was saved, if the process was asked to end."""
        args = self._args
        threads = args.threads or len(os.sched_getaffinity(0))
        teacher = Teacher(
            self._files.target,
            together=TOGETHER,
            max_tokens=args.max_tokens,
            threads=threads,
        )
        try:
            with asked_to_end() as asked:
                self._prepare(teacher)
                while self._share() < 1 and not asked:
                    self._advance(teacher)
                self._save()
        finally:
            teacher.close()

        if asked:
            show_progress(f"stopped after step {self._course.counts.step}; the same command with --resume goes on")
            raise KeyboardInterrupt

    def _prepare(self, teacher: Teacher) -> None:
        """Prompts, and the held-back text if the target has not written it yet."""
        args = self._args
        held: list[str] = []
        if args.prompts is not None:
            self._prompts = read_prompts(args.prompts)
        if args.held_out is not None:
            _, held = divided(
                read_prompts(args.held_out),
                args.held_back,
                args.seed,
            )
            self._prompts = [prompt for prompt in self._prompts if prompt not in held]
        elif args.prompts is not None:
            if len(self._prompts) <= args.held_back:
                raise ConfigError(
                    f"--held-back is {args.held_back}, and {args.prompts} has {len(self._prompts)} prompts: give more, "
                    "or hold back less."
                )
            self._prompts, held = divided(
                self._prompts,
                args.held_back,
                args.seed,
            )

        course = self._course
        if not course.held:
            if not held:
                held = invented(teacher, args.held_back, args.seed)
            course.held = completions_of(teacher, held)
            if not course.held:
                raise ConfigError(f"No held-back prompt has at most {MAX_PROMPT} tokens; give shorter ones.")
            course.began_at(
                match_rate(
                    course.student,
                    course.held,
                )
            )
        self._match_rate = course.counts.before

    def _advance(self, teacher: Teacher) -> None:
        """A round of writing or a step, and what is due after it."""
        began = time.monotonic()
        course = self._course
        if course.needs_text and self._has_prompts():
            self._write(teacher)
        elif not course.passages:
            raise ConfigError(f"No prompt has at most {MAX_PROMPT} tokens, so there is nothing to learn from.")
        else:
            course.step(self._share())

        now = time.monotonic()
        course.spent(now - began)
        if now >= self._next_look:
            self._match_rate = match_rate(course.student, course.held)
            self._next_look = time.monotonic() + (time.monotonic() - now) / LOOK_SHARE
        if now >= self._next_save:
            self._save()
        if now >= self._next_line:
            self._line()

    def _has_prompts(self) -> bool:
        """Whether there is a prompt that was not used yet; the target's own never end."""
        return self._args.prompts is None or self._course.counts.next_prompt < len(self._prompts)

    def _write(self, teacher: Teacher) -> None:
        """A round of completions."""
        first = self._course.counts.next_prompt
        if self._args.prompts is not None:
            prompts = self._prompts[first : first + TOGETHER]
            self._course.add(
                completions_of(teacher, prompts),
                len(prompts),
            )
            return

        # Seeds of the held-back prompts are below those of the rounds.
        prompts = teacher.invent(1_000_000 * (self._args.seed + 1) + first)
        self._course.add(
            completions_of(
                teacher,
                list(dict.fromkeys(prompts)),
            ),
            1,
        )

    def _share(self) -> float:
        """The share of the budget that is spent."""
        counts = self._course.counts
        if self._args.steps:
            return counts.step / self._args.steps
        return counts.seconds / max(
            60 * self._args.minutes,
            1e-9,
        )

    def _save(self) -> None:
        state.save(
            self._files.state,
            self._settings,
            self._course.saved(),
        )
        self._next_save = time.monotonic() + SAVE_S

    def _line(self) -> None:
        counts = self._course.counts
        left = f"{max(self._args.minutes - counts.seconds / 60, 0):.1f} min left"
        if self._args.steps:
            left = f"{self._args.steps - counts.step} steps left"
        show_progress(
            f"{left}, {counts.seen} tokens seen of {self._course.written} written, held-out match rate "
            f"{self._match_rate:.3f} ({counts.before:.3f} before)"
        )
        self._next_line = time.monotonic() + LINE_S


def invented(
    teacher: Teacher,
    count: int,
    seed: int,
) -> list[str]:
    """So many prompts that the target writes itself."""
    found: dict[str, None] = {}
    number = 0
    while len(found) < count and number < count:
        found |= dict.fromkeys(teacher.invent(1_000_000 * seed + number))
        number += 1
    if not found:
        raise ModelError("The target writes no prompts itself; give some by --prompts.")
    return list(found)[:count]


def completions_of(teacher: Teacher, prompts: list[str]) -> list[state.Passage]:
    """The target's completions of prompts, without those that are too long."""
    tokens = [teacher.chat.tokens(prompt) for prompt in prompts]
    short = [prompt for prompt in tokens if len(prompt) <= MAX_PROMPT]
    passages: list[state.Passage] = []
    for first in range(
        0,
        len(short),
        TOGETHER,
    ):
        passages += teacher.complete(short[first : first + TOGETHER])
    return passages


def finished(
    args: argparse.Namespace,
    files: Files,
    course: Course,
) -> int:
    """Writes the draft, measures it, and keeps it if it is better. Raises ModelError, NotBetterError."""
    show_progress("measures both drafts in llama.cpp")
    made = files.out.with_name(f".{files.out.name}.part")
    try:
        output.write(files.draft, made, course.student)
        require_trials(args.parts, made, 0, again=True)
        before, after = measuring.measured_both(
            files.draft,
            made,
            course.held,
            args.threads or 1,
        )
        better = measuring.is_better(before, after)
        if better:
            made.replace(files.out)
    finally:
        made.unlink(missing_ok=True)

    report = {
        "output": str(files.out) if better else None,
        "before": msgspec.to_builtins(before) | {"right_tokens_a_second": before.right_tokens_a_second},
        "after": msgspec.to_builtins(after) | {"right_tokens_a_second": after.right_tokens_a_second},
        "steps": course.counts.step,
        "minutes": course.counts.seconds / 60,
        "tokens_seen": course.counts.seen,
        "tokens_written": course.written,
    }
    if args.json:
        print(json.dumps(report))
    else:
        print(measuring.table(before, after))
    if not better:
        raise NotBetterError(
            f"The healed draft is not better than {files.draft.name}, so it was not kept; go on with --resume and more "
            f"--minutes, or remove {files.state}."
        )

    show_progress(f"{files.out} is the healed draft: name it in `draft.model` of worker.toml")
    show_progress(f"{files.state} has what was learnt and the texts: keep it for --resume, or remove it")
    return 0


@contextmanager
def asked_to_end() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of ending at once; a second one ends at once."""
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(
            number,
            before[signal.Signals(number)],
        )

    for number in before:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_progress(line: str) -> None:
    """Progress goes to standard error, so that `--json` alone is on standard output."""
    print(line, file=sys.stderr, flush=True)
