"""An EAGLE head: it is trained to give the state after a token, and what the target expects from there (section 3)."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from cloud_gateway.models.drafts.eagle import NAMES, EagleHead, Line, load
from cloud_gateway.models.target_model.load import Loaded
from edgespec.core.errors import ConfigError
from tools.train_heads.text import TOO_SHORT, Pupil, Row, Text, frequent

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


def pupil(args: argparse.Namespace, loaded: Loaded, known: Text) -> Pupil:
    """The head of `--out`, or a new one. Raises ConfigError, ModelError."""
    embedding = loaded.model.get_input_embeddings().weight.detach().cpu()
    if args.out.exists():
        head = load(args.out, loaded.model_digest)
    else:
        output = loaded.model.get_output_embeddings().weight.detach().cpu()
        head = fresh(embedding.shape[1], output, known, args.vocabulary)
    return Pupil(
        weights(head),
        losses(head, embedding, known),
        lambda: head.save(args.out, loaded.model_digest),
        lambda held: measure(head, embedding, held),
    )


def weights(head: EagleHead) -> list[Tensor]:
    """What is trained: all but the output embedding."""
    return [getattr(head, name) for name in NAMES if name not in ("output", "tokens")]


def fresh(embedded: int, output: Tensor, text: Text, size: int) -> EagleHead:
    """A head for the `size` most frequent tokens; `embedded`: width of the input embedding, `output`: [vocab, d]."""
    width, tokens = output.shape[1], frequent(text, size)
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


def losses(head: EagleHead, embedding: Tensor, text: Text) -> Callable[[], Tensor]:
    """The distance of predicted states, and the cross-entropy of what follows from them, on random texts.

    Only states from which the target chose a token are learnt. Raises ConfigError where there are none.
    """
    spans = [(first, end) for first, end in text.spans() if text.written[first + 1 : end].any()]
    if not spans:
        raise ConfigError(TOO_SHORT)
    scale = text.states[text.tokens >= 0].pow(2).mean().sqrt()

    def loss() -> Tensor:
        chosen = [spans[index] for index in torch.randint(len(spans), (TEXTS,)).tolist()]
        rows = torch.cat([torch.arange(*span) for span in chosen])
        positions = torch.cat([torch.arange(end - first) for first, end in chosen])
        which = torch.repeat_interleave(torch.arange(TEXTS), torch.tensor([end - first for first, end in chosen]))
        visible = (which[:, None] == which).tril()
        true = text.states[rows]
        noise = NOISE * scale * (2 * torch.rand_like(true) - 1)
        found = head(F.embedding(text.tokens[rows], embedding).float(), true + noise, positions, visible)
        learnt = (which[1:] == which[:-1]) & text.written[rows][1:]
        predicted, wanted = found[:-1][learnt], true[1:][learnt]
        close = F.smooth_l1_loss(predicted / scale, wanted / scale)
        return close + TOKEN_WEIGHT * F.cross_entropy(head.logits(predicted), head.logits(wanted).softmax(-1))

    return loss


def measure(head: EagleHead, embedding: Tensor, text: Text) -> list[Row]:
    """Of each step of a draft, where all before it were right: how often its most probable token was right too."""
    asked, right = Counter[int](), Counter[int]()
    for first, end in text.spans():
        line, tokens = Line(head, embedding), [-1, *text.tokens[first:end].tolist()]
        for place in range(first, end - 1):
            line.add(text.states[place : place + 1])
            if not text.written[place + 1] or asked[0] >= PLACES:
                continue
            known = place - first + 2
            line.read(tokens[line.next_place : known])
            levels, number = line.ahead(), 0
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
