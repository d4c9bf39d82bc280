"""Text that a target itself writes, greedily: what drafts are calibrated, trained and measured on; and the options that
name the target and its prompts.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cloud_gateway.models.text import Text
from cloud_gateway.parts.torch_engine import load as loading
from cloud_gateway.parts.torch_engine.engine import TorchSection, dtype_for
from cloud_gateway.parts.torch_engine.load import Loaded
from edgespec.core.errors import ConfigError
from edgespec.core.numbers import common_prefix
from edgespec.shared.models import resolve_model
from edgespec_lab import options
from edgespec_lab.demo import PROMPTS
from edgespec_lab.train.folder import Folder

RANKS = 32
"""Tokens of each distribution that are kept, the most probable ones."""
MAX_PROMPT = 512
"""Tokens of a prompt; longer ones are left out."""
TOO_SHORT = "The target's completions are too short to learn from: give other prompts, or a greater --max-tokens."
MADE_UP = 64
MADE_UP_P = 0.95
"""Most tokens of a prompt that is made up, and the probability from which its tokens are drawn (top-p)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """n completions; P: tokens of the longest prompt, G: of the longest completion. All on the CPU."""

    tokens: Tensor
    """[n, P + G] int64: prompts padded on the left, completions on the right."""
    mask: Tensor
    """[n, P + G] bool: False where there is padding."""
    ranked: Tensor
    """[n, G, RANKS] int64: the target's most probable tokens at each place, the most probable first."""
    log_probs: Tensor
    """[n, G, RANKS] float32: theirs, nats."""

    @property
    def completions(self) -> int:
        """G."""
        return self.ranked.shape[1]

    @property
    def written(self) -> Tensor:
        """[n, G] bool: places that hold a token of a completion."""
        return self.mask[:, -self.completions :]

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Batch:
        """From what `parts` returned, and maybe more. Raises KeyError."""
        return cls(**{name: parts[name] for name in cls.__slots__})

    def parts(self) -> dict[str, Tensor]:
        """As a file holds it."""
        return {name: getattr(self, name).contiguous() for name in self.__slots__}

    def sequences(self) -> Iterator[tuple[list[int], int]]:
        """Each prompt with its completion, without padding; and how many of the tokens are the completion's."""
        for row, real, written in zip(self.tokens, self.mask, self.written, strict=True):
            yield row[real].tolist(), int(written.sum())


@dataclass(frozen=True, slots=True)
class Lesson:
    """Text of the target, and what it gave its output embedding there."""

    batch: Batch
    states: Tensor
    """[n, P + G, width] bfloat16."""

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Lesson:
        """From what `parts` returned. Raises KeyError."""
        return cls(Batch.of(parts), parts["states"])

    def parts(self) -> dict[str, Tensor]:
        """As a file holds it."""
        return self.batch.parts() | {"states": self.states}

    def pieces(self, size: int) -> Iterator[Lesson]:
        """Lessons of at most `size` completions each."""
        for at in range(0, len(self.states), size):
            yield Lesson.of({name: part[at : at + size].contiguous() for name, part in self.parts().items()})


class Pairs(NamedTuple):
    """Texts, one behind the other: of each n - 1 pairs of a state and the token after it, and an end."""

    states: Tensor
    """[n, width] float32: what the output embedding was given; 0 at an end."""
    tokens: Tensor
    """[n]; -1 at an end."""
    written: Tensor
    """[n] bool: the target chose the token; True at an end too."""

    def completions(self) -> Pairs:
        """Without the pairs of prompts."""
        return Pairs(self.states[self.written], self.tokens[self.written], self.written[self.written])

    def spans(self) -> list[tuple[int, int]]:
        """First pair and end of each text."""
        ends = (self.tokens < 0).nonzero()[:, 0].tolist()
        return list(zip([0, *(end + 1 for end in ends)], ends, strict=False))

    def frequent(self, size: int) -> Tensor:
        """Ids of the tokens that the target chose most often, at most `size`, in rising order. Raises ConfigError."""
        chosen = Counter(self.tokens[self.written & (self.tokens >= 0)].tolist())
        if not chosen:
            raise ConfigError(TOO_SHORT)
        return torch.tensor(sorted(token for token, _ in chosen.most_common(size)))


def pairs(lessons: Iterable[Lesson]) -> Pairs:
    """The texts of these lessons."""
    found = list[Tensor]()
    tokens = list[int]()
    written = list[bool]()
    for one in lessons:
        for rows, real, (sequence, length) in zip(one.states, one.batch.mask, one.batch.sequences(), strict=True):
            found += [rows[real][:-1], torch.zeros_like(rows[:1])]
            tokens += [*sequence[1:], -1]
            written += [False] * (len(sequence) - 1 - length) + [True] * (length + 1)

    return Pairs(torch.cat(found).float(), torch.tensor(tokens), torch.tensor(written))


def split(prompts: Sequence[Sequence[int]], held_back: int, size: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Batches of at most `size` prompts to train on, prompts of like length together; and batches of those held back.

    Which prompts are held back depends on the seed only.
    """
    drawn = random.Random(seed).sample([list(prompt) for prompt in prompts], len(prompts))

    def batches(some: Iterable[list[int]]) -> list[list[list[int]]]:
        ordered = sorted(some, key=len)
        return [ordered[at : at + size] for at in range(0, len(ordered), size)]

    return batches(drawn[held_back:]), batches(drawn[:held_back])


def rendered(loaded: Loaded, prompts: Iterable[str]) -> list[list[int]]:
    """Prompts as token ids of a chat, without those of more than MAX_PROMPT tokens."""
    text = Text(loaded.tokenizer)
    tokens = (text.render_chat([{"role": "user", "content": prompt}]) for prompt in prompts)
    return [one for one in tokens if len(one) <= MAX_PROMPT]


@torch.no_grad()
def made_up(loaded: Loaded, count: int, seed: int) -> list[str]:
    """At most `count` prompts that the target makes up: what it writes where a user's text begins (Magpie).

    They are sampled, all at once, by the seed; empty ones are left out. Raises ClientError where it has no chat.
    """
    text = Text(loaded.tokenizer)
    model = loaded.model
    first, other = (text.render_chat([{"role": "user", "content": content}]) for content in ("A", "7z"))
    start = torch.tensor([first[: common_prefix(first, other)]] * count, device=model.device)
    torch.manual_seed(seed)
    found = model.generate(
        start, attention_mask=torch.ones_like(start), do_sample=True, temperature=1.0, top_k=0, top_p=MADE_UP_P,
        max_new_tokens=MADE_UP, pad_token_id=0,
    )[:, start.shape[1] :].tolist()  # fmt: skip
    ends = ends_of(model)
    cut = (one[: next((at for at, token in enumerate(one) if token in ends), None)] for one in found)
    prompts = (loaded.tokenizer.decode(one, skip_special_tokens=True).strip() for one in cut)
    return [prompt for prompt in prompts if prompt]


def lesson(model: Any, prompts: Sequence[Sequence[int]], count: int, ends: frozenset[int] | None = None) -> Lesson:
    """What the target writes to these prompts, all at once."""
    batch = write(model, prompts, count, ends_of(model) if ends is None else ends)
    return Lesson(batch, states(model, batch))


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much text of the target is wanted."""

    held_back: int
    made_up: int
    max_tokens: int
    together: int
    """Completions written at once: a pass over their rows takes little more than over one."""
    seed: int


def texts(
    loaded: Loaded, prompts: Sequence[str], wanted: Wanted, folder: Folder, say: Callable[[str], object]
) -> tuple[list[Lesson], list[Lesson]]:
    """Lessons to train on and held back; what the folder holds already is not written again.

    Raises ConfigError, ModelError.
    """
    train, held = split(rendered(loaded, prompts), wanted.held_back, wanted.together, wanted.seed)
    invented = list[str]()
    for number, at in enumerate(range(0, wanted.made_up, wanted.together)):
        make = partial(made_up, loaded, min(wanted.together, wanted.made_up - at), wanted.seed + number)
        invented += folder.prompts(f"prompts-{number:04}", make)
        say(f"{len(invented)} of {wanted.made_up} prompts made up")
    train += split(rendered(loaded, dict.fromkeys(invented)), 0, wanted.together, 1)[0]
    if not train or not held:
        raise ConfigError(f"Too few prompts have at most {MAX_PROMPT} tokens: give others, or a lower --held-back.")

    named = [(f"held-{number:04}", batch) for number, batch in enumerate(held)]
    named += [(f"train-{number:04}", batch) for number, batch in enumerate(train)]
    found = list[Lesson]()
    for done, (name, some) in enumerate(named, 1):
        make_text = partial(_parts, loaded.model, some, wanted.max_tokens)
        found.append(Lesson.of(folder.text(name, make_text)))
        say(f"text {done} of {len(named)}")

    return found[len(held) :], found[: len(held)]


def _parts(model: Any, prompts: Sequence[Sequence[int]], count: int) -> Mapping[str, Tensor]:
    return lesson(model, prompts, count).parts()


def ends_of(model: Any) -> frozenset[int]:
    """Tokens that end a completion."""
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [ends]) - {None}


@torch.no_grad()
def write(model: Any, prompts: Sequence[Sequence[int]], count: int, ends: frozenset[int]) -> Batch:
    """Greedy completions of up to `count` tokens, all prompts at once; `ends`: tokens that end one, which they hold."""
    device = model.device
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(one)) + list(one) for one in prompts], device=device)
    mask = torch.tensor([[False] * (width - len(one)) + [True] * len(one) for one in prompts], device=device)
    going = torch.ones(len(prompts), dtype=torch.bool)
    cache = None
    new = tokens
    ranked: list[Any] = []
    log_probs: list[Any] = []
    stops = torch.tensor(sorted(ends), device=device)
    while len(ranked) < count and going.any():
        out = model(
            new, attention_mask=mask.long(), position_ids=positions(mask)[:, -new.shape[1] :], past_key_values=cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        cache = out.past_key_values
        best = out.logits[:, -1].float().log_softmax(-1).topk(min(RANKS, out.logits.shape[-1]))
        ranked.append(best.indices)
        log_probs.append(best.values)
        new = best.indices[:, :1]
        tokens = torch.cat([tokens, new], 1)
        mask = torch.cat([mask, going[:, None].to(device)], 1)
        going &= ~torch.isin(new[:, 0], stops).cpu()

    return Batch(tokens.cpu(), mask.cpu(), torch.stack(ranked, 1).cpu(), torch.stack(log_probs, 1).cpu())


@torch.no_grad()
def states(model: Any, batch: Batch) -> Tensor:
    """[n, P + G, width] bfloat16 on the CPU: what the model gives its output embedding at each place."""
    ids = batch.tokens.to(model.device)
    mask = batch.mask.to(model.device)
    body = model.base_model(ids, attention_mask=mask.long(), position_ids=positions(mask), use_cache=False)
    found: Tensor = body.last_hidden_state.to("cpu", torch.bfloat16)
    return found


def positions(mask: Tensor) -> Tensor:
    """[n, T] int64: the place of each token in its own sequence."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="auto:quantised", help="as target.model")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=options.number(int, 0, 512), default=0, help="0: one for each core")
    parser.add_argument("--seed", type=int, default=1, help="which prompts are held back, and the order of batches")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")


def load(args: argparse.Namespace) -> loading.Loaded:
    """The target of the options, in the dtype in which the engine torch would load it. Raises ModelError."""
    args.threads = args.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(args.threads)
    return loading.load(resolve_model(args.target), dtype_for(TorchSection()), args.device)
