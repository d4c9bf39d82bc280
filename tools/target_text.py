"""Text that a target itself writes, greedily: what drafts are calibrated and trained on."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.torch import TorchTarget
from cloud_gateway.models.text import Text
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.targets import load_target
from edgespec.core.errors import ConfigError
from edgespec.lab.demo.scene import PROMPTS, read_prompts
from edgespec.shared.settings import overridden

HELD_BACK = 4
"""One prompt of so many is kept for measuring."""
SLOTS = 16
"""Completions written at once: a pass over their rows takes little more than over one."""
SEED = 1


@dataclass(slots=True)
class Written:
    """A prompt, and what the target wrote after it, its end of text included."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which target writes, and after which prompts."""
    parser.add_argument("--target", default="auto:quantised", help="as target.model")
    parser.add_argument(
        "--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines (default: the demo's)"
    )


def load(model: str, threads: int) -> tuple[TorchTarget, Text]:
    """A target in torch with room for SLOTS completions. Raises ModelError."""
    values = {"target.model": model, "target.engine": "torch", "target.threads": threads, "target.slots": SLOTS}
    loaded = load_target(overridden(GatewaySettings(), values), "torch")
    assert isinstance(loaded.target, TorchTarget)
    return loaded.target, Text(loaded.tokenizer)


def chats(path: Path, limit: int, text: Text) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts of a file as token ids of a chat, in an order drawn by SEED: to learn from, and held back.

    Raises ConfigError where there are fewer than HELD_BACK.
    """
    prompts = read_prompts(path, limit, SEED)
    if len(prompts) < HELD_BACK:
        raise ConfigError(f"{path} with --limit {limit} gives {len(prompts)} prompts; {HELD_BACK} or more are needed.")
    tokens = [text.render_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    kept = len(tokens) // HELD_BACK
    return tokens[kept:], tokens[:kept]


def write(
    target: TorchTarget,
    prompts: Sequence[Sequence[int]],
    count: int,
    seen: Callable[[Written, Tensor], object] = lambda written, state: None,
) -> Iterator[Written]:
    """Completions of at most `count` tokens, in the order of the prompts.

    `seen` is given the hidden state [hidden_size] that each token was chosen from, before the token is added.
    """
    for first in range(0, len(prompts), target.slots):
        group = [Written(list(prompt)) for prompt in prompts[first : first + target.slots]]
        slots = [target.open(one.prompt)[0] for one in group]
        for one, slot in zip(group, slots, strict=True):
            target.prefill(slot, one.prompt[:-1])
        left = [(one, slot) for one, slot in zip(group, slots, strict=True) if count]
        while left:
            ends = [(one.tokens or one.prompt)[-1] for one, _ in left]
            works = [Work(slot, FlatTree([end], [-1], [0])) for end, (_, slot) in zip(ends, left, strict=True)]
            for (one, slot), rows in zip(left, target.verify(works), strict=True):
                target.keep(slot, [0])
                state = target.hidden(slot)
                assert state is not None  # a row was kept
                seen(one, state)
                one.tokens.append(rows.argmax[0])
            left = [pair for pair in left if len(pair[0].tokens) < count and pair[0].tokens[-1] not in target.eos]
        for slot in slots:
            target.close(slot)
        yield from group
