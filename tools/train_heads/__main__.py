"""Trains heads over a target's hidden states, on text that the target itself writes.

    python -m tools.train_heads medusa --prompts FILE --out heads.safetensors --minutes 5
    python -m tools.train_heads eagle --prompts FILE --out eagle.safetensors --minutes 5

The target writes a completion of each prompt; its states and tokens are kept in OUT.text. A Medusa head learns to give
the token some places further on, an EAGLE head the state after the next token. OUT is written twice a minute and at the
end; the same command goes on from it, and from OUT.text, with the optimiser's moments forgotten. One prompt of four is
held back: what is printed is how often the heads were right there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cloud_gateway.models.target_model.load import Loaded
from edgespec.core.errors import ConfigError
from tools import options, target_text, verbs
from tools.train_heads import eagle, medusa
from tools.train_heads.text import Text, states

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
    torch.manual_seed(target_text.SEED)
    heads = PUPILS[args.kind](args, loaded, known)
    steps, loss = fit(heads.weights, heads.loss, 60 * args.minutes, args.steps, heads.save)
    rows = heads.measure(held)
    verbs.console().print(verbs.table(rows))
    learnt, measured = (int((one.written & (one.tokens >= 0)).sum()) for one in (known, held))
    print(f"{steps} steps, last loss {loss:.3f}, {learnt} tokens to learn from, {measured} held back")
    verbs.write_json(args.json, {"rows": rows, "steps": steps, "loss": loss, "tokens": learnt, "held": measured})
    return 0


def text_of(args: argparse.Namespace, loaded: Loaded) -> tuple[Text, Text]:
    """What the target wrote, to learn from and held back: from OUT.text where it is there. Raises ConfigError."""
    kept = args.out.with_name(args.out.name + ".text")
    made_of = {"target": loaded.model_digest.hex(), "prompts": str(args.prompts), "limit": str(args.limit)}
    made_of |= {"max_tokens": str(args.max_tokens), "holds": " ".join(Text._fields)}
    if kept.exists():
        try:
            with safe_open(kept, "pt") as file:
                if file.metadata() != made_of:
                    raise ConfigError(
                        f"{kept} is the text of another target or other options: delete it, or name another --out."
                    )
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{kept} cannot be read ({error}): delete it.") from error
    else:
        found = {}
        for name, batches in zip(("known", "held"), target_text.prompts_of(args, loaded), strict=True):
            made = states(loaded.model, batches, args.max_tokens)
            found |= {f"{name}.{field}": part for field, part in made._asdict().items()}
        part = kept.with_name(f".{kept.name}.part")
        save_file(found, part, made_of)
        part.replace(kept)
    known, held = (Text(*(found[f"{name}.{field}"] for field in Text._fields)) for name in ("known", "held"))
    return known._replace(states=known.states.float()), held._replace(states=held.states.float())


def fit(
    weights: Sequence[Tensor], loss_of: Callable[[], Tensor], seconds: float, most: int, save: Callable[[], object]
) -> tuple[int, float]:
    """Adam for so long and at most so many steps; steps made, the smoothed loss."""
    optimiser = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=2e-3)
    began = saved = time.monotonic()
    steps, smooth = 0, 0.0
    while time.monotonic() - began < seconds and steps < most:
        loss = loss_of()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps += 1
        smooth += (loss.item() - smooth) * max(0.05, 1 / steps)
        if time.monotonic() - saved > CHECKPOINT_S:
            saved = time.monotonic()
            save()
            print(f"{saved - began:.0f} s: {steps} steps, loss {smooth:.3f}", file=sys.stderr)
    save()
    return steps, smooth


if __name__ == "__main__":
    sys.exit(main())
