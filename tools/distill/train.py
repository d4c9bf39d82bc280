"""Trains a draft of some layers of the target on what the target writes, and writes it as a GGUF file.

The same command goes on where it was stopped, with the same result. `--minutes` ends training early, with the learning
rate brought down by then, and writes the draft as it is; a later run goes on. SIGINT and SIGTERM keep a checkpoint.
Printed: losses, times, and how often the draft is right on held-back prompts.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloud_gateway.models.target_model.load import load
from edgespec.core.errors import ConfigError, ModelError
from edgespec.lab.demo import PROMPTS, read_prompts
from edgespec.lab.drafts import FORMATS
from edgespec.lab.gguf_layers import block_count
from edgespec.shared import models
from edgespec.shared.digests import model_digest
from tools import options, target_text, verbs
from tools.distill import measure
from tools.distill.export import export
from tools.distill.folder import Folder
from tools.distill.layers import checked, kept_layers
from tools.distill.training import Lesson, Trainer, pruned, right, trained
from tools.target_text import MAX_PROMPT, TOGETHER

Say = Callable[[str], object]
KEEP_S = 600.0
"""Seconds after which a checkpoint is kept even before the next of `--every` steps."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.distill train`."""
    parser.add_argument("folder", type=Path, help="of this run: the target's text and checkpoints")
    parser.add_argument("--out", type=Path, metavar="GGUF", help="the draft (default: draft.gguf in the folder)")
    parser.add_argument("--source", type=Path, help="GGUF of the target (default: the demo's model)")
    parser.add_argument("--layers", type=int, default=10, help="layers to keep: the first, and the rest evenly")
    parser.add_argument("--keep", type=_numbers, metavar="N,N...", help="which layers to keep instead, counted from 0")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument(
        "--made-up",
        type=options.number(int, 0, 10_000_000),
        default=0,
        help="prompts from the target itself beside these",
    )
    parser.add_argument("--held-back", type=options.number(int, 1, 10_000), default=4, help="prompts not trained on")
    parser.add_argument(
        "--max-tokens", type=options.number(int, 2, 4096), default=128, help="tokens of each completion"
    )
    parser.add_argument("--batch", type=options.number(int, 1, 4096), default=8, help="completions of a step")
    parser.add_argument(
        "--together", type=options.number(int, 1, 4096), default=TOGETHER, help="completions written at once"
    )
    parser.add_argument("--steps", type=options.number(int, 1, 10_000_000), default=1000)
    parser.add_argument("--rate", type=options.number(float, 1e-7, 1.0), default=1e-3, help="highest learning rate")
    parser.add_argument(
        "--every", type=options.number(int, 1, 1_000_000), default=100, help="steps between checkpoints"
    )
    parser.add_argument(
        "--minutes", type=options.number(float, 0.01, 1e6), default=math.inf, help="of text and training"
    )
    parser.add_argument("--format", choices=FORMATS, default="q4_0", help="of the draft's weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=options.number(int, 1, 512), default=1)
    parser.add_argument("--seed", type=int, default=1, help="which prompts are held back, and the order of batches")


def run(args: argparse.Namespace) -> int:
    """Prints progress and a row about the draft. Raises ConfigError, ModelError."""
    distill(args, lambda line: print(line, flush=True))
    return 0


def distill(args: argparse.Namespace, say: Say) -> Path:
    """Writes text, trains, writes the draft, measures it; returns its path."""
    until = time.monotonic() + 60 * args.minutes
    torch.set_num_threads(args.threads)
    source, folder = args.source or models.quantised(), Folder(args.folder)
    total = block_count(source)
    kept = checked(args.keep, total) if args.keep else kept_layers(args.layers, total)
    prompts = read_prompts(args.prompts, 10**9, args.seed)
    if args.held_back >= len(prompts):
        raise ConfigError(f"--held-back is {args.held_back}, and {args.prompts} has {len(prompts)} prompts.")
    folder.begin(_settings(args, source, kept))
    loaded = load(source, "float32", args.device)
    student = pruned(loaded.model, kept)
    train, held = written(loaded, prompts, args, folder, say)
    lessons = [piece for lesson in train for piece in lesson.pieces(args.batch)]
    trainer = Trainer(student, lessons, args.steps, args.rate, args.seed)
    config = loaded.model.config
    del loaded
    size = sum(weight.numel() for weight in student.parameters()) / 1e6
    say(f"layers {','.join(map(str, kept))} of {total}: {size:.1f} M parameters")
    tokens = [sum(int(lesson.batch.written.sum()) for lesson in some) for some in (train, held)]
    say(
        f"{tokens[0]} tokens to learn from, {tokens[1]} held back"
        f"; at most {args.steps} steps{f' and {args.minutes:g} minutes' if args.minutes < math.inf else ''}"
    )
    fit(trainer, folder, args.steps, args.every, until, say)
    first, among = right(student, [lesson.batch for lesson in held])
    say(f"right on held-back prompts after {trainer.step} steps: {first:.3f}, among four {among:.3f}")
    out: Path = args.out or args.folder / "draft.gguf"
    export(source, out, trained(student), kept, config, args.format)
    sequences = [one for lesson in held for one in lesson.batch.sequences()]
    for name, value in measure.table([out], sequences, 20, args.threads)[0].items():
        say(f"{name}: {value}")
    return out


def written(
    loaded: Any, prompts: Sequence[str], args: argparse.Namespace, folder: Folder, say: Say
) -> tuple[list[Lesson], list[Lesson]]:
    """What the target writes, to train on and held back; what is in the folder already is not written again."""
    ends = target_text.ends_of(loaded.model)
    train, held = target_text.split(target_text.rendered(loaded, prompts), args.held_back, args.together, args.seed)
    made_up = folder.made_up(loaded, args.made_up, args.together, args.seed, say)
    train += target_text.split(target_text.rendered(loaded, made_up), 0, args.together, 1)[0]
    named = [(f"held-{number:04}", batch) for number, batch in enumerate(held)]
    named += [(f"train-{number:04}", batch) for number, batch in enumerate(train)]
    if not train:
        raise ConfigError(f"Too few prompts of {args.prompts} have at most {MAX_PROMPT} tokens.")
    found, began = list[Lesson](), time.monotonic()

    def lesson(some: Sequence[Sequence[int]]) -> Mapping[str, Tensor]:
        batch = target_text.write(loaded.model, some, args.max_tokens, ends)
        return Lesson(batch, target_text.states(loaded.model, batch)).parts()

    for done, (name, some) in enumerate(named, 1):
        found.append(Lesson.of(folder.text(name, partial(lesson, some))))
        say(f"text {done} of {len(named)}, {left(time.monotonic() - began, done, len(named) - done)}")
    return found[len(held) :], found[: len(held)]


def fit(trainer: Trainer, folder: Folder, steps: int, every: int, until: float, say: Say) -> None:
    """Trains from the newest checkpoint to the last step, or until this time; the last step made is kept.

    Raises KeyboardInterrupt, after a checkpoint, where the process was asked to end. Raises ModelError.
    """
    if (newest := folder.newest()) is not None:
        try:
            trainer.resume(*newest)
        except (KeyError, RuntimeError) as error:
            name = f"step-{newest.step:06}"
            raise ModelError(f"{folder.path}/{name} is no checkpoint of this run; delete its two files.") from error
        say(f"goes on after step {newest.step}")
    began, first, saved, lines = time.monotonic(), trainer.step, trainer.step, 0.0
    now = kept_at = began
    with verbs.asked_to_end() as asked:
        while trainer.step < steps and now < until and not asked:
            found = trainer.advance((now - began) / (until - began))
            if found != found:
                raise ModelError(f"The loss of step {trainer.step} is no number; use a lower --rate in another folder.")
            now = time.monotonic()
            if trainer.step % every == 0 or now - kept_at > KEEP_S:
                folder.save(trainer.step, trained(trainer.student), trainer.state(), every)
                saved, kept_at = trainer.step, now
            if now >= lines or trainer.step == steps:
                ahead = left(now - began, trainer.step - first, steps - trainer.step)
                say(f"step {trainer.step} of {steps}, loss {found:.3f}, {ahead}")
                lines = now + 10
        if trainer.step != saved:
            folder.save(trainer.step, trained(trainer.student), trainer.state(), every)
    if asked:
        say(f"stopped after step {trainer.step}; the same command goes on")
        raise KeyboardInterrupt


def left(seconds: float, done: int, ahead: int) -> str:
    """The pace so far and the time that the rest takes at it."""
    each = seconds / max(done, 1)
    minutes = each * ahead / 60
    return f"{each:.2f} s each, {minutes:.0f} min left"


def _settings(args: argparse.Namespace, source: Path, kept: Sequence[int]) -> dict[str, Any]:
    """What a run must have in common with the one that it goes on from."""
    names = ("held_back", "made_up", "max_tokens", "batch", "together", "steps", "rate", "seed")
    digest = model_digest(args.prompts).hex()
    return {name: getattr(args, name) for name in names} | {
        "source": model_digest(source).hex(), "prompts": digest, "layers": list(kept), "learns": "states and tokens"
    }  # fmt: skip


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
