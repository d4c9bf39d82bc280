"""An EAGLE head: it is trained to give the state after a token, and what the target expects from there (section 3)."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from cloud_gateway.parts.draft_heads.eagle import EagleHead, Line
from cloud_gateway.parts.torch_engine.load import Loaded
from edgespec.core.errors import ConfigError
from edgespec_lab import options
from edgespec_lab.train.loop import Pupil, Row
from edgespec_lab.train.text import TOO_SHORT, Lesson, Pairs, pairs

TEXTS = 4
"""Texts of one step."""
TOKEN_WEIGHT = 0.1
"""Of the cross-entropy beside the distance of states, as in the paper."""
NOISE = 0.1
"""Greatest noise on a state, in its own size, as in the paper: drafts go on from states that are not quite right."""
HEAD_WIDTH = 64
INNER = 3
"""Width of the layer's inner product, in widths of a state."""
PLACES = 1000
"""Places of a text that are measured at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocabulary", type=options.number(int, 1, 1 << 20), default=4096, help="most frequent tokens")


def pupil(args: argparse.Namespace, loaded: Loaded, lessons: Sequence[Lesson], held: Sequence[Lesson]) -> Pupil:
    """A new head. Raises ConfigError."""
    text = pairs(lessons)
    model = loaded.model
    embedding, output = (
        one.weight.detach().cpu() for one in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    head = fresh(embedding.shape[1], output, text, args.vocabulary)

    def finish() -> list[Row]:
        head.save(args.out, loaded.model_digest)
        return measure(head, embedding, pairs(held))

    return Pupil(weights(head), losses(head, embedding, text), finish)


def weights(head: EagleHead) -> dict[str, Tensor]:
    """What is trained: all but the output embedding."""
    return {name: getattr(head, name) for name in EagleHead.names() if name not in ("output", "tokens")}


def fresh(embedded: int, output: Tensor, text: Pairs, size: int) -> EagleHead:
    """A head for the `size` most frequent tokens; `embedded`: width of the input embedding, `output`: [vocab, d]."""
    width = output.shape[1]
    tokens = text.frequent(size)
    dim = HEAD_WIDTH if width % HEAD_WIDTH == 0 else width
    scale = text.states[text.tokens >= 0].pow(2).mean(0).sqrt()

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape) / shape[-1] ** 0.5

    return EagleHead(
        join=drawn(width, embedded + width),
        norm_1=torch.ones(width),
        qkv=drawn(3, width // dim, dim, width),
        out=torch.zeros(width, width),
        norm_2=torch.ones(width),
        gate=drawn(INNER * width, width),
        up=drawn(INNER * width, width),
        down=torch.zeros(width, INNER * width),
        norm_3=scale,
        output=output[tokens].float(),
        tokens=tokens,
    )


def losses(head: EagleHead, embedding: Tensor, text: Pairs) -> Callable[[int], Tensor]:
    """The distance of predicted states, and the cross-entropy of what follows from them, on random texts.

    Only states from which the target chose a token are learnt. Raises ConfigError where there are none.
    """
    spans = [(first, end) for first, end in text.spans() if text.written[first + 1 : end].any()]
    if not spans:
        raise ConfigError(TOO_SHORT)

    scale = text.states[text.tokens >= 0].pow(2).mean().sqrt()

    def loss(step: int) -> Tensor:
        drawn = torch.Generator().manual_seed(step)
        chosen = [spans[index] for index in torch.randint(len(spans), (TEXTS,), generator=drawn).tolist()]
        rows = torch.cat([torch.arange(*span) for span in chosen])
        positions = torch.cat([torch.arange(end - first) for first, end in chosen])
        which = torch.repeat_interleave(torch.arange(TEXTS), torch.tensor([end - first for first, end in chosen]))
        visible = (which[:, None] == which).tril()
        true = text.states[rows]
        noise = NOISE * scale * (2 * torch.rand(true.shape, generator=drawn) - 1)
        found = head(F.embedding(text.tokens[rows], embedding).float(), true + noise, positions, visible)
        learnt = (which[1:] == which[:-1]) & text.written[rows][1:]
        predicted = found[:-1][learnt]
        wanted = true[1:][learnt]
        close = F.smooth_l1_loss(predicted / scale, wanted / scale)
        return close + TOKEN_WEIGHT * F.cross_entropy(head.logits(predicted), head.logits(wanted).softmax(-1))

    return loss


def measure(head: EagleHead, embedding: Tensor, text: Pairs) -> list[Row]:
    """Of each step of a draft, where all before it were right: how often its most probable token was right too."""
    asked = Counter[int]()
    right = Counter[int]()
    for first, end in text.spans():
        line = Line(head, embedding)
        tokens = [-1, *text.tokens[first:end].tolist()]
        for place in range(first, end - 1):
            line.add(text.states[place : place + 1])
            if not text.written[place + 1] or asked[0] >= PLACES:
                continue
            known = place - first + 2
            line.read(tokens[line.next_place : known])
            levels = line.ahead()
            number = 0
            for step, token in enumerate(tokens[known:]):
                if not 0 <= number < len(levels):
                    break
                asked[step] += 1
                if levels[number].tokens[0] != token:
                    break
                right[step] += 1
                number = levels[number].below[0]
    steps = asked or (0,)
    return [
        {"step": step, "places": asked[step], "right": round(right[step] / max(asked[step], 1), 3)} for step in steps
    ]
