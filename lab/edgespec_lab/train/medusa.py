"""Medusa heads: a head is trained to give the token some places behind the target's own next one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from cloud_gateway.parts.draft_heads.medusa import MedusaTensors
from cloud_gateway.parts.torch_engine.load import Loaded
from edgespec.core.errors import ConfigError
from edgespec_lab import options
from edgespec_lab.train.loop import Pupil, Row
from edgespec_lab.train.text import TOO_SHORT, Lesson, Pairs, pairs

BATCH = 64
"""States of one step."""
IGNORED = -100
"""Label of a token that the heads do not have, or that lies beyond the end."""
TOP = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--heads", type=options.number(int, 1, 8), default=3)
    parser.add_argument("--rank", type=options.number(int, 1, 4096), default=64, help="of a head's block")
    parser.add_argument("--vocabulary", type=options.number(int, 1, 1 << 20), default=4096, help="most frequent tokens")


def pupil(args: argparse.Namespace, loaded: Loaded, lessons: Sequence[Lesson], held: Sequence[Lesson]) -> Pupil:
    """New heads. Raises ConfigError."""
    text = pairs(lessons).completions()
    embedding = loaded.model.get_output_embeddings().weight.detach().cpu()
    heads = fresh(embedding, text.frequent(args.vocabulary), args.heads, args.rank)

    def finish() -> list[Row]:
        heads.save(args.out, loaded.model_digest)
        return measure(heads, pairs(held).completions())

    return Pupil({"down": heads.down, "up": heads.up}, losses(heads, text), finish)


def fresh(embedding: Tensor, tokens: Tensor, count: int, rank: int) -> MedusaTensors:
    """Heads for these tokens that expect of every place what the target expects of the next one."""
    width = embedding.shape[1]
    down = torch.randn(count, width, rank) / width**0.5
    return MedusaTensors(down, torch.zeros(count, rank, width), embedding[tokens].float(), tokens)


def labels(heads: MedusaTensors, tokens: Tensor) -> Tensor:
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


def losses(heads: MedusaTensors, text: Pairs) -> Callable[[int], Tensor]:
    """The cross-entropy of all heads, after random states. Raises ConfigError where no head has a token to learn."""
    wanted = labels(heads, text.tokens)
    useful = (wanted != IGNORED).any(1).nonzero()[:, 0]
    if not len(useful):
        raise ConfigError(TOO_SHORT)

    def loss(step: int) -> Tensor:
        chosen = useful[torch.randint(len(useful), (BATCH,), generator=torch.Generator().manual_seed(step))]
        logits = heads(text.states[chosen])
        return F.cross_entropy(logits.flatten(0, 1), wanted[chosen].flatten(), ignore_index=IGNORED)

    return loss


@torch.inference_mode()
def measure(heads: MedusaTensors, text: Pairs) -> list[Row]:
    """Of each head: how often its first and its first TOP tokens hold the right one; unknown tokens count as wrong."""
    best = heads(text.states).topk(min(TOP, len(heads.tokens))).indices
    tokens = text.tokens
    chosen = heads.tokens[best]
    rows = list[Row]()
    for head in range(len(heads.down)):
        places = [i for i in range(len(tokens) - head - 1) if -1 not in tokens[i : i + head + 2].tolist()]
        right = chosen[places, head] == tokens[[place + head + 1 for place in places]][:, None]
        first, any_of = (right[:, :count].any(1).float().mean() for count in (1, TOP))
        rows.append(
            {"head": head, "places": len(places), "right": round(float(first), 3), f"in {TOP}": round(float(any_of), 3)}
        )

    return rows
