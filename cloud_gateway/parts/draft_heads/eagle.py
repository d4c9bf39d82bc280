"""An EAGLE head beside a torch target: one decoder layer that drafts the target's own states (Li et al. 2024).

A pair is a state and the token after it. From a pair, and from all pairs before it, to which it attends, the layer
predicts the state after the token; the output embedding's rows of the most frequent tokens give what may follow, and
each of these with the predicted state is the next pair. Only pairs of the target's own states stay in the keys and
values, so that nothing of a rejected draft is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from cloud_gateway.parts.draft_heads.rows import GrowingRows
from cloud_gateway.parts.draft_heads.source import HeadLevel
from cloud_gateway.parts.draft_heads.tensors import UNFIT, HeadTensors
from edgespec.core.errors import ModelError

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.inside import StatesTarget

DEPTH = 5
"""Tokens of a path that is drafted."""
WIDTH = 4
"""Tokens that may follow each other."""
BEAM = 3
"""Most probable paths that are continued: on a CPU three rows take little more time than one."""
MIN_PATH = 0.01
"""Probability below which a path is not continued. It is far less than what is suggested: a target that decodes
greedily chooses its first token more often than its distribution says, which the source learns."""
DRAFTED = BEAM * (DEPTH - 1)
"""Drafted pairs that are held at once behind those of the text."""
CHUNK = 128
"""Pairs that are read at once."""
ROPE_BASE = 10_000.0
"""Of the rotary embedding (RoFormer), as the first models of the Llama family have it."""
NOTHING = -1


@dataclass(slots=True)
class EagleHead(HeadTensors):
    """One layer of h attention heads of `dim` numbers, over states of d numbers, embeddings of e, and v tokens."""

    kind = "eagle"
    join: Tensor
    """[d, e + d]."""
    norm_1: Tensor
    """[d]."""
    qkv: Tensor
    """[3, h, dim, d]."""
    out: Tensor
    """[d, h · dim]."""
    norm_2: Tensor
    """[d]."""
    gate: Tensor
    """[m, d], as `up`."""
    up: Tensor
    down: Tensor
    """[d, m]."""
    norm_3: Tensor
    """[d]."""
    output: Tensor
    """[v, d]: rows of the target's output embedding."""
    tokens: Tensor
    """[v]: their token ids."""

    def __call__(
        self, embedded: Tensor, states: Tensor, positions: Tensor, visible: Tensor, past: GrowingRows | None = None
    ) -> Tensor:
        """The states [n, d] after n tokens, from their embeddings [n, e] and the states [n, d] before them.

        `positions`: [n], of the states. `visible`: bool [n, p + n], the pairs that each attends to, of the p in `past`
        and of these, whose keys and values are written behind those of `past`, a plane for each head.
        """
        size = self.norm_1.shape
        joined = torch.cat([_unit(embedded), _unit(states)], -1)
        x = F.linear(joined, self.join)

        # Attention, with the keys and values of `past` in front.
        projected = F.linear(F.rms_norm(x, size, self.norm_1), self.qkv.flatten(0, 2))
        by_head = projected.view(-1, *self.qkv.shape[:3]).permute(1, 2, 0, 3)
        queries, keys, values = by_head.unsqueeze(1)
        queries = _rotated(queries, positions)
        keys = _rotated(keys, positions)
        if past is not None:
            kept = past.put(torch.cat([keys[0], values[0]]))
            keys, values = kept.unsqueeze(0).chunk(2, dim=1)
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
        x = x + F.linear(attended[0].transpose(0, 1).flatten(1), self.out)

        # The inner product.
        h = F.rms_norm(x, size, self.norm_2)
        gated = F.silu(F.linear(h, self.gate)) * F.linear(h, self.up)
        x = x + F.linear(gated, self.down)
        return F.rms_norm(x, size, self.norm_3)

    def logits(self, states: Tensor) -> Tensor:
        """[n, v]: of what follows after states [n, d]."""
        return F.linear(states, self.output)

    def fits(self) -> bool:
        """A pass over one pair, from which the width of the embedding follows."""
        width = self.norm_1.numel()
        pair = torch.zeros(1, self.join.shape[1] - width), torch.zeros(1, width)
        after = self(*pair, torch.zeros(1), torch.ones(1, 1, dtype=torch.bool))
        shape = self.logits(after).shape
        return shape == (1, len(self.tokens)) and len(self.tokens) > 0 and self.tokens.dtype == torch.int64


class Continued(NamedTuple):
    """A drafted token that is continued."""

    survival: float
    """Probability of its whole path."""
    row: int
    """The level that has it, among those of its depth."""
    rank: int
    """Its place in this level."""


class Line:
    """One text: the target's states, the pairs that were read, and what may follow them."""

    def __init__(self, head: EagleHead, embedding: Tensor, room: int = 2**20) -> None:
        """`embedding`: the target's, of its input. `room`: tokens beyond which the buffers no longer double."""
        self._head = head
        self._embedding = embedding
        _, heads, dim, width = head.qkv.shape
        self._kv = GrowingRows(2 * heads, dim, embedding.device, room + DRAFTED)
        self._states = GrowingRows(1, width, embedding.device, room)
        """Of the target's states: a text that goes on from any of its tokens needs the one before."""
        self._last: Tensor | None = None
        """[1, d]: the state predicted after the last pair."""

    @property
    def next_place(self) -> int:
        """Place in the text of the token of the next pair."""
        return self._kv.length + 1

    def continue_from(self, other: Line, count: int) -> None:
        """Begins an empty text with the first `count` tokens of another one, and what was read of them."""
        self._states.copy_from(other._states, count)
        self._kv.copy_from(other._kv, min(count - 1, other._kv.length))

    def add(self, states: Tensor) -> None:
        """The target's states [n, d] of the next tokens of the text."""
        self._states.put(states.unsqueeze(0))
        self._states.length += len(states)

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> None:
        """Reads the pairs of these tokens, which are the text from `next_place` on, as far as it has states."""
        new = tokens[: self._states.length - self._kv.length]
        for first in range(0, len(new), CHUNK):
            chunk = new[first : first + CHUNK]
            held = self._kv.length
            end = held + len(chunk)
            states = self._states.first(end)[0, held:]

            positions = torch.arange(held, end, device=states.device)
            visible = torch.ones(len(chunk), end, dtype=torch.bool, device=states.device).tril_(held)
            self._last = self._after(chunk, states, positions, visible)[-1:]

    @torch.inference_mode()
    def ahead(self) -> list[HeadLevel]:
        """What may follow the last pair, and then: nothing before the first one."""
        if self._last is None:
            return []

        held = self._kv.length
        reached = self._levels(self._last)
        levels = list(reached)
        states = self._last
        survivals = [1.0]
        # Of each level at this depth: the drafted pairs above it, by their places in `_kv`.
        paths: list[list[int]] = [[]]

        for depth in range(DEPTH - 1):
            leaves = _best(reached, survivals)
            if not leaves:
                break

            # Each leaf is a new pair, which attends to the text and to the pairs of its own path.
            first = self._kv.length
            paths = [[*paths[leaf.row], place] for place, leaf in enumerate(leaves, first)]
            survivals = [leaf.survival for leaf in leaves]
            visible = torch.zeros(len(leaves), first + len(leaves), dtype=torch.bool)
            visible[:, :held] = True
            for number, path in enumerate(paths):
                visible[number, path] = True

            tokens = [reached[leaf.row].tokens[leaf.rank] for leaf in leaves]
            positions = torch.full((len(leaves),), held + depth, device=states.device)
            before = states[[leaf.row for leaf in leaves]]
            states = self._after(tokens, before, positions, visible.to(states.device))

            for place, leaf in enumerate(leaves, len(levels)):
                reached[leaf.row].below[leaf.rank] = place
            reached = self._levels(states)
            levels += reached

        self._kv.length = held
        return levels

    def _after(self, tokens: Sequence[int], states: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """The states [n, d] after these tokens; the pairs are behind the others then."""
        embedded = F.embedding(torch.tensor(tokens, device=states.device), self._embedding).float()
        after: Tensor = self._head(embedded, states, positions, visible, self._kv)
        self._kv.length += len(tokens)
        return after

    def _levels(self, states: Tensor) -> list[HeadLevel]:
        """What follows after each of these states."""
        chances = self._head.logits(states).softmax(-1)
        best = chances.topk(min(WIDTH, len(self._head.tokens)))
        tokens = self._head.tokens[best.indices].tolist()

        levels: list[HeadLevel] = []
        for chosen in zip(tokens, best.values.tolist(), strict=True):
            levels.append(HeadLevel(*chosen, [NOTHING] * len(chosen[0])))
        return levels


class EagleDrafts:
    """The head beside a target (`Heads`, and the target's `StateReader`), on the engine's thread."""

    def __init__(self, head: EagleHead, target: StatesTarget) -> None:
        """Raises ModelError if the target's states, embeddings or tokens are others."""
        width = target.hidden_size
        fits = head.join.shape == (width, target.embedding.shape[1] + width)
        if not fits or int(head.tokens.max()) >= target.vocab_size:
            raise ModelError(UNFIT)

        self._head = head.on(target.device)
        self._target = target
        self._lines = dict[int, Line]()
        target.show_states(self)

    def open(self, slot: int, donor: int, reused: int) -> None:
        """See `StateReader`."""
        line = Line(self._head, self._target.embedding, self._target.context)
        if reused:
            line.continue_from(self._lines[donor], reused)
        self._lines[slot] = line

    def add(self, slot: int, states: Tensor) -> None:
        """See `StateReader`."""
        self._lines[slot].add(states)

    def drop(self, slot: int) -> None:
        """See `StateReader`."""
        self._lines.pop(slot, None)

    def read(self, slot: int) -> None:
        """Takes in the states of this slot's prompt, as far as the target has read it."""
        line = self._lines[slot]
        line.read(self._target.held(slot)[line.next_place :])

    def ask(self, slot: int, token: int) -> list[HeadLevel]:
        line = self._lines[slot]
        line.read([*self._target.held(slot)[line.next_place :], token])
        return line.ahead()


def _best(levels: Sequence[HeadLevel], survivals: Sequence[float]) -> list[Continued]:
    """The most probable tokens of levels that are reached with these probabilities, that one first."""
    leaves: list[Continued] = []
    for row, level in enumerate(levels):
        for rank, chance in enumerate(level.chances):
            leaf = Continued(survivals[row] * chance, row, rank)
            if leaf.survival >= MIN_PATH:
                leaves.append(leaf)
    return heapq.nlargest(BEAM, leaves)


def _unit(x: Tensor) -> Tensor:
    """Scaled to a mean square of 1: embeddings and states differ much in size."""
    return F.rms_norm(x, x.shape[-1:])


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of [..., n, dim] by the positions [n]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * ROPE_BASE ** (-torch.arange(half, device=x.device) / half)
    cos = angles.cos()
    sin = angles.sin()
    low = x[..., :half]
    high = x[..., half:]
    return torch.cat([low * cos - high * sin, low * sin + high * cos], -1)
