"""One training: the target's text, the loop, and what came of it on the text that was held back.

The same command goes on where it was stopped, with the same result. `--minutes` ends training early, with the learning
rate brought down by then; a later run goes on. SIGINT and SIGTERM keep a checkpoint.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from edgespec.core.errors import ConfigError
from edgespec.shared.models import model_digest
from edgespec_lab import options, verbs
from edgespec_lab.demo import read_prompts
from edgespec_lab.train import eagle, medusa
from edgespec_lab.train.folder import Folder
from edgespec_lab.train.loop import Trainer, fit
from edgespec_lab.train.text import Wanted, add_target, load, texts

KINDS: dict[str, ModuleType] = {"medusa": medusa, "eagle": eagle}
"""The kinds that can be trained, each with its module."""


def verb(kind: str) -> verbs.Verb:
    """The command that trains this kind."""
    about = (KINDS[kind].__doc__ or "").partition("\n")[0]
    return verbs.Verb(kind, about, partial(add_arguments, kind), partial(run, kind))


def add_arguments(kind: str, parser: argparse.ArgumentParser) -> None:
    count = partial(options.number, int)
    parser.add_argument("folder", type=Path, help="of the target's text and checkpoints")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"default: {kind}.safetensors in the folder")
    add_target(parser)
    parser.add_argument("--made-up", type=count(0, 10_000_000), default=0, help="prompts from the target itself, too")
    parser.add_argument("--held-back", type=count(1, 10_000), default=4, help="prompts not trained on")
    parser.add_argument("--max-tokens", type=count(2, 4096), default=96, help="of each completion")
    parser.add_argument("--together", type=count(1, 4096), default=16, help="completions written at once")
    parser.add_argument("--steps", type=count(1, 10_000_000), default=1000, help="of training at most")
    parser.add_argument("--minutes", type=options.number(float, 0, 1e6), default=math.inf, help="of text and training")
    parser.add_argument("--rate", type=options.number(float, 1e-7, 1.0), default=2e-3, help="highest rate")
    KINDS[kind].add_arguments(parser)


def run(kind: str, args: argparse.Namespace) -> int:
    """Text, training, figures. Raises ConfigError, ModelError."""
    until = time.monotonic() + 60 * args.minutes
    folder = Folder(args.folder)
    args.out = args.out or args.folder / f"{kind}.safetensors"
    prompts = read_prompts(args.prompts, 10**9, args.seed)
    if args.held_back >= len(prompts):
        raise ConfigError(f"--held-back is {args.held_back}, and {args.prompts} has {len(prompts)} prompts.")

    loaded = load(args)
    wanted = Wanted(args.held_back, args.made_up, args.max_tokens, args.together, args.seed)
    digests = {"target": loaded.model_digest.hex(), "prompts": model_digest(args.prompts).hex()}
    folder.begin("text", digests | {name: getattr(wanted, name) for name in wanted.__slots__})
    folder.begin(kind, asked(kind, args))
    known, held = texts(loaded, prompts, wanted, folder, say)
    torch.manual_seed(args.seed)
    pupil = KINDS[kind].pupil(args, loaded, known, held)
    tokens, unseen = (sum(int(one.batch.written.sum()) for one in some) for some in (known, held))
    parameters = sum(weight.numel() for weight in pupil.weights.values()) / 1e6
    say(f"{tokens} tokens to learn from, {unseen} held back; {parameters:.1f} M parameters to train")
    trainer = Trainer(pupil.weights, pupil.loss, args.steps, args.rate)
    del loaded
    loss = fit(trainer, folder, kind, args.steps, until, say)
    rows = pupil.finish()
    verbs.console().print(verbs.table(rows))
    say(f"{args.out} after {trainer.step} steps, right on held-back prompts as above")
    report = {
        "rows": list(rows),
        "steps": trainer.step,
        "loss": None if math.isnan(loss) else loss,
        "tokens": tokens,
        "held": unseen,
    }
    verbs.write_json(args.json, report)
    return 0


def asked(kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """What a training must have in common with the one that it goes on from."""
    own = argparse.ArgumentParser(add_help=False)
    KINDS[kind].add_arguments(own)
    return {name: getattr(args, name) for name in ("steps", "rate", *vars(own.parse_args([])))}


def say(line: str) -> None:
    print(line, flush=True)
