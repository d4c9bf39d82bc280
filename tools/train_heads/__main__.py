"""Trains heads over a target's hidden states, on text that the target itself writes.

    python -m tools.train_heads medusa --prompts FILE --out heads.safetensors --minutes 5
    python -m tools.train_heads eagle --prompts FILE --out eagle.safetensors --minutes 5

The target writes a completion of each prompt; its states and tokens are kept in the folder OUT.text. A Medusa head
learns to give the token some places further on, an EAGLE head the state after the next token. OUT is written twice a
minute, at the end, and when SIGINT or SIGTERM comes; the same command goes on from it, and from OUT.text, with the
optimiser's moments forgotten. One prompt of four of FILE is held back: what is printed is how often the
heads were right there.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from cloud_gateway.models.target_model.load import Loaded
from edgespec.core.errors import ModelError
from edgespec.shared.digests import model_digest
from tools import options, target_text, verbs
from tools.distill.folder import Folder
from tools.train_heads import eagle, medusa
from tools.train_heads.text import Text, joined, states

CHECKPOINT_S = 30.0
PUPILS = {"medusa": medusa.pupil, "eagle": eagle.pupil}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.train_heads", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=tuple(PUPILS))
    target_text.add_options(parser)
    parser.add_argument("--limit", type=options.number(int, 4, 100_000), default=1000, help="prompts to use")
    parser.add_argument(
        "--made-up",
        type=options.number(int, 0, 1_000_000),
        default=0,
        help="prompts from the target itself beside these",
    )
    parser.add_argument("--max-tokens", type=options.number(int, 8, 4096), default=96, help="of each completion")
    parser.add_argument("--heads", type=options.number(int, 1, 8), default=3, help="of medusa")
    parser.add_argument("--rank", type=options.number(int, 1, 4096), default=64, help="of a Medusa head's block")
    parser.add_argument("--vocabulary", type=options.number(int, 1, 1 << 20), default=4096, help="most frequent tokens")
    parser.add_argument(
        "--minutes", type=options.number(float, 0, 10_000), default=5, help="of training, text excluded"
    )
    parser.add_argument("--steps", type=options.number(int, 0, 1 << 40), default=1 << 40, help="of training at most")
    parser.add_argument("--out", type=options.output, required=True, metavar="FILE", help="safetensors")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")
    parser.set_defaults(run=train)
    return verbs.run(parser, argv)


def train(args: argparse.Namespace) -> int:
    """Text, training, figures. Raises EdgespecError."""
    loaded = target_text.load(args)
    known, held = text_of(args, loaded)
    learnt, measured = (int((one.written & (one.tokens >= 0)).sum()) for one in (known, held))
    say(f"{learnt} tokens to learn from, {measured} held back; {args.minutes:g} minutes")
    torch.manual_seed(target_text.SEED)
    heads = PUPILS[args.kind](args, loaded, known)
    steps, loss = fit(heads.weights, heads.loss, 60 * args.minutes, args.steps, heads.save)
    rows = heads.measure(held)
    verbs.console().print(verbs.table(rows))
    print(f"{steps} steps, last loss {loss:.3f}, {learnt} tokens to learn from, {measured} held back")
    verbs.write_json(args.json, {"rows": rows, "steps": steps, "loss": loss, "tokens": learnt, "held": measured})
    return 0


def say(line: str) -> None:
    """Shows progress."""
    print(line, file=sys.stderr)


def text_of(args: argparse.Namespace, loaded: Loaded) -> tuple[Text, Text]:
    """What the target wrote, to learn from and held back; what is in OUT.text already is not written again.

    Raises ConfigError, ModelError.
    """
    folder = Folder(args.out.with_name(args.out.name + ".text"))
    known, held = target_text.prompts_of(args, loaded)
    folder.begin({
        "target": loaded.model_digest.hex(), "prompts": model_digest(args.prompts).hex(), "limit": args.limit,
        "made_up": args.made_up, "max_tokens": args.max_tokens, "holds": list(Text._fields),
    })  # fmt: skip
    made_up = folder.made_up(loaded, args.made_up, target_text.TOGETHER, target_text.SEED, say)
    known += target_text.split(target_text.rendered(loaded, made_up), 0, target_text.TOGETHER, target_text.SEED)[0]
    named = [(f"{name}-{number:04}", some) for name, part in (("known", known), ("held", held))
             for number, some in enumerate(part)]  # fmt: skip
    found, began = list[dict[str, Tensor]](), time.monotonic()

    def made(some: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        return states(loaded.model, [some], args.max_tokens)._asdict()

    for done, (name, some) in enumerate(named, 1):
        found.append(folder.text(name, partial(made, some)))
        minutes = (time.monotonic() - began) / done * (len(named) - done) / 60
        say(f"text {done} of {len(named)}, {minutes:.0f} min left")
    return joined(found[: len(known)]), joined(found[len(known) :])


def fit(
    weights: Sequence[Tensor], loss_of: Callable[[], Tensor], seconds: float, most: int, save: Callable[[], object]
) -> tuple[int, float]:
    """Adam for so long and at most so many steps; steps made, the smoothed loss.

    Raises KeyboardInterrupt, after a save, where the process was asked to end, and ModelError where the loss is none.
    """
    optimiser = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=2e-3)
    began = saved = time.monotonic()
    steps, smooth = 0, 0.0
    with verbs.asked_to_end() as asked:
        while (now := time.monotonic()) - began < seconds and steps < most and not asked:
            loss = loss_of()
            if not math.isfinite(value := loss.item()):
                raise ModelError(f"The loss of step {steps} is no number; delete the file of --out and train again.")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps += 1
            smooth += (value - smooth) * max(0.05, 1 / steps)
            if now - saved > CHECKPOINT_S:
                saved = now
                save()
                say(f"{saved - began:.0f} of {seconds:.0f} s: {steps} steps, loss {smooth:.3f}")
        save()
    if asked:
        say(f"stopped after {steps} steps; the same command goes on")
        raise KeyboardInterrupt
    return steps, smooth


if __name__ == "__main__":
    sys.exit(main())
