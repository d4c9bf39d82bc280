"""Trains heads over a target's last hidden state, on text that the target itself writes.

    python -m tools.train_heads medusa --prompts FILE --out heads.safetensors --minutes 5

The target writes a completion of each prompt; the hidden state before each of its tokens is kept in OUT.text. A head is
trained to give the token some places further on. OUT is written twice a minute and at the end; the same command goes on
from it, and from OUT.text, with the optimiser's moments forgotten. One prompt of four is held back: what is printed is
how often each head was right there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cloud_gateway.models.drafts.medusa import Heads, load
from cloud_gateway.models.target_model.load import Loaded
from edgespec.core.errors import ConfigError, EdgespecError
from tools import options, target_text, verbs

CHECKPOINT_S = 30.0
BATCH = 64
"""States of one step."""
IGNORED = -100
"""Label of a token that the heads do not have, or that lies beyond the end."""
TOP = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.train_heads", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("medusa",))
    target_text.add_options(parser)
    parser.add_argument("--limit", type=options.number(int, 4, 100_000), default=1000, help="prompts to use")
    parser.add_argument("--max-tokens", type=options.number(int, 8, 4096), default=96, help="of each completion")
    parser.add_argument("--heads", type=options.number(int, 1, 8), default=3)
    parser.add_argument("--rank", type=options.number(int, 1, 4096), default=64, help="of a head's residual block")
    parser.add_argument("--vocabulary", type=options.number(int, 1, 1 << 20), default=4096, help="most frequent tokens")
    parser.add_argument(
        "--minutes", type=options.number(float, 0, 10_000), default=5, help="of training, text excluded"
    )
    parser.add_argument("--steps", type=options.number(int, 0, 1 << 40), default=1 << 40, help="of training at most")
    parser.add_argument("--out", type=options.output, required=True, metavar="FILE", help="safetensors")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")
    args = parser.parse_args(argv)
    try:
        return train(args)
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def train(args: argparse.Namespace) -> int:
    """Text, training, figures. Raises EdgespecError."""
    loaded = target_text.load(args)
    embedding = loaded.model.get_output_embeddings().weight.detach().cpu()
    known, held = text_of(args, loaded)
    if args.out.exists():
        heads = load(args.out, loaded.model_digest)
    else:
        heads = fresh(embedding, known[1], args.heads, args.rank, args.vocabulary)
    torch.manual_seed(target_text.SEED)
    steps, loss = fit(heads, *known, 60 * args.minutes, args.steps, lambda: heads.save(args.out, loaded.model_digest))
    rows = measure(heads, *held)
    verbs.console().print(verbs.table(rows))
    print(f"{steps} steps, last loss {loss:.3f}, {len(known[1])} tokens to learn from, {len(held[1])} held back")
    verbs.write_json(args.json, {"rows": rows, "steps": steps, "tokens": len(known[1]), "held": len(held[1])})
    return 0


Text = tuple[Tensor, Tensor]
"""Hidden states [n, width] in float32, and the token that the target chose after each [n]; -1 ends a completion."""


def text_of(args: argparse.Namespace, loaded: Loaded) -> tuple[Text, Text]:
    """What the target wrote, to learn from and held back: from OUT.text where it is there. Raises ConfigError."""
    kept = args.out.with_name(args.out.name + ".text")
    made_of = {"target": loaded.model_digest.hex(), "prompts": str(args.prompts), "limit": str(args.limit)}
    made_of["max_tokens"] = str(args.max_tokens)
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
            found[f"{name}.hidden"], found[f"{name}.tokens"] = states(loaded.model, batches, args.max_tokens)
        part = kept.with_name(f".{kept.name}.part")
        save_file(found, part, made_of)
        part.replace(kept)
    known, held = ((found[f"{name}.hidden"].float(), found[f"{name}.tokens"]) for name in ("known", "held"))
    return known, held


def states(model: Any, batches: Sequence[Sequence[Sequence[int]]], count: int) -> Text:
    """Completions of these prompts, each with its states, one behind the other; bfloat16."""
    found, tokens = list[Tensor](), list[int]()
    for number, prompts in enumerate(batches, 1):
        seen = list[Tensor]()
        batch = target_text.write(model, prompts, count, target_text.ends_of(model), seen.append)
        for (sequence, length), hidden in zip(batch.sequences(), torch.stack(seen, 1), strict=True):
            found += [hidden[:length], torch.zeros_like(hidden[:1])]
            tokens += [*sequence[-length:], -1]
        print(f"text: {number} of {len(batches)} batches, {len(tokens)} tokens", file=sys.stderr)
    return torch.cat(found).to(torch.bfloat16), torch.tensor(tokens)


def fresh(embedding: Tensor, tokens: Tensor, count: int, rank: int, size: int) -> Heads:
    """Heads that expect of every place what the target expects of the next one."""
    common = [token for token, _ in Counter(tokens[tokens >= 0].tolist()).most_common(size)]
    ids = torch.tensor(sorted(common))
    width = embedding.shape[1]
    down = torch.randn(count, width, rank) / width**0.5
    return Heads(down, torch.zeros(count, rank, width), embedding[ids].float(), ids)


def labels(heads: Heads, tokens: Tensor) -> Tensor:
    """[n, heads]: index among the heads' tokens of what each is to give after each state, or IGNORED.

    The state before token i gives that token itself; head 0 is to give the one after it.
    """
    where = {token: index for index, token in enumerate(heads.tokens.tolist())}
    ids = tokens.tolist()
    found = torch.full((len(ids), len(heads.down)), IGNORED)
    for place in range(len(ids)):
        for head in range(len(heads.down)):
            ahead = ids[place : place + head + 2]
            if len(ahead) < head + 2 or -1 in ahead:
                break
            found[place, head] = where.get(ahead[-1], IGNORED)
    return found


def fit(
    heads: Heads, hidden: Tensor, tokens: Tensor, seconds: float, most: int, save: Callable[[], object]
) -> tuple[int, float]:
    """Adam on the cross-entropy of all heads, for so long and at most so many steps; steps made, the smoothed loss."""
    wanted = labels(heads, tokens)
    useful = (wanted != IGNORED).any(1).nonzero()[:, 0]
    weights = [heads.down.requires_grad_(), heads.up.requires_grad_()]
    optimiser = torch.optim.Adam(weights, lr=2e-3)
    began = saved = time.monotonic()
    steps, smooth = 0, 0.0
    while time.monotonic() - began < seconds and steps < most and len(useful):
        chosen = useful[torch.randint(len(useful), (BATCH,))]
        logits = heads(hidden[chosen])
        loss = F.cross_entropy(logits.flatten(0, 1), wanted[chosen].flatten(), ignore_index=IGNORED)
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


@torch.inference_mode()
def measure(heads: Heads, hidden: Tensor, tokens: Tensor) -> list[dict[str, object]]:
    """Of each head: how often its first and its first TOP tokens hold the right one; unknown tokens count as wrong."""
    best = heads(hidden).topk(min(TOP, len(heads.tokens))).indices
    chosen, rows = heads.tokens[best], list[dict[str, object]]()
    for head in range(len(heads.down)):
        places = [i for i in range(len(tokens) - head - 1) if -1 not in tokens[i : i + head + 2].tolist()]
        right = chosen[places, head] == tokens[[place + head + 1 for place in places]][:, None]
        first, any_of = (right[:, :count].any(1).float().mean() for count in (1, TOP))
        rows.append(
            {"head": head, "places": len(places), "right": round(float(first), 3), f"in {TOP}": round(float(any_of), 3)}
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
