"""Drafting with a draft model of another tokenizer than the target's (string-level matching: arXiv 2502.05202).

The target decides every token itself, so a translation can cost acceptance and never correctness. Borders that no token
of either tokenizer crosses (borders.py) part each text into segments, which are translated one by one:

- committed text before the last border is cut into draft tokens for good; the draft model reads these;
- the committed tail behind it may still be cut otherwise, so it is a path in the draft tree that nothing else leaves;
- a draft path becomes the target's tokens of each of its segments, which no longer text can change. Those of the last
  segment, which is not over, are likely: they are sent too, and longer text that changes them adds a branch.

Paths of the draft tree whose bytes contradict the tail are dropped; one that is longer than the tail and agrees with it
stays. Control tokens that the target lacks end a draft path, and so does text that its tokenizer does not give back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgespec.core.drafting.algorithm2 import Drafting, Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule, rank_by_target
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.ranking import Ranker, Spread, Tokens
from edgespec.core.drafting.tree import Node
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.gumbel import gumbel
from edgespec.core.sampling.logits import Candidates, Floats
from edgespec.parts.text_translation.borders import Borders


class Tokenizer(Protocol):
    """A tokenizer as far as translation needs it."""

    tokenizer_digest: bytes
    vocab_size: int

    @property
    def pieces(self) -> Sequence[bytes | None]:
        """The bytes of each token in id order; None for control tokens."""

    @property
    def controls(self) -> Mapping[int, bytes]:
        """The text of each control token."""

    @property
    def begin(self) -> Sequence[int]:
        """The tokens before each prompt."""

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text that begins at a border, without any that begin or end a prompt."""


class Translator:
    """A pair of tokenizers; shared by all requests of a draft model."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target = target
        self.draft = draft
        self.borders = Borders(target.pieces, draft.pieces)
        own = {text: token for token, text in draft.controls.items()}
        self._controls = {token: own.get(text) for token, text in target.controls.items()}
        """A target's control token -> the draft's token of the same text, if it has one."""
        self.marks = {own: token for token, own in self._controls.items() if own is not None}
        """The draft's control tokens that the target has too -> the target's."""
        self._entries = {piece: (token,) for token, piece in enumerate(target.pieces) if piece}
        own_numbers = [self._entries.get(piece or b"", (-1,))[0] for piece in draft.pieces]
        self.numbers = np.array([self.marks.get(token, number) for token, number in enumerate(own_numbers)], np.int64)
        """The target's token of the same bytes for each of the draft's, -1 where there is none."""
        # Words recur. Functions instead of methods: a reference from here to itself would keep the vocabularies.
        self.cut = lru_cache(MAX_KEPT)(partial(_cut, target, self._entries))
        self.read = lru_cache(MAX_KEPT)(partial(_read, draft))

    def size(self, tokens: Sequence[int]) -> int:
        """Bytes of the target's tokens."""
        return sum(len(self.target.pieces[token] or b"") for token in tokens)

    def control(self, token: int) -> list[int]:
        """Draft tokens for one of the target's control tokens: the one of the same text, else its text in letters.

        A begin-of-text mark that the draft lacks is not spelt out, since models read no such text.
        """
        same = self._controls.get(token)
        text = self.target.controls[token]
        if same is not None:
            return [same]
        return [] if text in _UNWRITTEN else self.draft.encode(text)

    def drafting(
        self, request: int, epoch: int, prompt_len: int, rule: BestFirstRule, *, calibrator: Calibrator
    ) -> Drafting:
        """The state of one request; the translator's `MakeDrafting`."""
        return TranslatedDrafting(request, epoch, prompt_len, self, rule, calibrator=calibrator)

    @staticmethod
    def ranker(sampling: Sampling, drafting: Drafting, spread: Spread) -> Ranker:
        """Ranks the draft tokens of one request; the translator's `MakeRanker`."""
        if isinstance(drafting, TranslatedDrafting):
            return TranslatedRanker(sampling, drafting, spread)
        return rank_by_target(sampling, drafting, spread)


def _cut(target: Tokenizer, entries: Mapping[bytes, tuple[int]], segment: bytes) -> Sequence[int]:
    """The target's tokens of a segment, without an incomplete character at its end; none where they stand for other
    bytes. Byte pair encoding makes an entry of its bytes again."""
    if segment in entries:
        return entries[segment]

    whole = whole_characters(segment)
    pieces = target.pieces
    tokens = tuple(target.encode(whole)) if whole else ()
    if b"".join(pieces[token] or b"" for token in tokens) == whole:
        return tokens
    return ()


def _read(draft: Tokenizer, text: bytes) -> Sequence[int]:
    """The draft's tokens of whole segments, without an incomplete character at their end."""
    if whole := whole_characters(text):
        return draft.encode(whole)
    return ()


_UNWRITTEN = frozenset((b"<bos>", b"<s>", b"<|begin_of_text|>", b"<|endoftext|>", b"<unk>", b"<pad>"))


MAX_KEPT = 1 << 14
"""Segments whose tokens are kept: about 5 MB with their texts."""
MAX_TAIL = 256
"""Bytes of a tail at which it is taken as it is cut now: scripts without borders would otherwise be read again and
again. The draft model then reads other tokens than it would write, which costs acceptance only."""


@dataclass(slots=True)
class CommittedText:
    """The committed tokens of one request: what the draft model reads, and the tail that may still be cut otherwise."""

    pair: Translator
    tail: bytes = b""
    """Bytes after the last border."""
    tail_tokens: list[int] = field(default_factory=list)
    """The target's tokens of the tail."""
    begun: bool = False

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Takes the target's tokens; returns the draft's tokens that became certain."""
        pair = self.pair
        over = b""
        certain = [] if self.begun else list(pair.draft.begin)
        self.begun = True
        for token in tokens:
            if token < len(pair.target.pieces):
                piece = pair.target.pieces[token]
            else:
                piece = b""
            if piece is None:
                certain += pair.read(over + self.tail)
                certain += [one for one in pair.control(token) if certain != [one] or one not in pair.draft.begin]
                over = b""
                self.tail = b""
                self.tail_tokens = []
                continue
            if (self.tail and piece and pair.borders.between(self.tail[-1], piece[0])) or len(self.tail) >= MAX_TAIL:
                over += self.tail
                self.tail = b""
                self.tail_tokens = []
            self.tail += piece
            self.tail_tokens.append(token)

        return [*certain, *pair.read(over)]

    def forced(self) -> Sequence[int]:
        """The draft's tokens of the tail, without the bytes of a character that is not complete."""
        return self.pair.read(self.tail)


def whole_characters(text: bytes) -> bytes:
    """The text without an incomplete UTF-8 sequence at its end (RFC 3629)."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if back < needed:
                return text[:-back]
            return text
        if byte < 0x80:
            return text

    return text


class Cut(NamedTuple):
    """How the text of a draft path is cut into the target's tokens."""

    anchor: Node | None
    """The target's node at the last border; None while that is the committed text's last one."""
    rest: bytes
    """The text behind it."""
    tokens: Sequence[int]
    """The target's tokens of that text which are not committed."""


class _DraftTree(BestFirst):
    """The tree of draft tokens, whose paths agree with the tail of the committed text."""

    def __init__(self, request: int, text: CommittedText, rule: BestFirstRule, **rest: Any) -> None:
        super().__init__(request, 0, 1, rule, **rest)
        self.text = text
        self.cuts: dict[Node, Cut] = {}

    def continues(self, node: Node, token: int) -> bool:
        """Whether a token may follow here: none that the target lacks, and no contradiction to the tail."""
        pair = self.text.pair
        tail = self.text.tail
        cut = self.cuts.get(node)
        if token < len(pair.draft.pieces):
            piece = pair.draft.pieces[token]
        else:
            piece = b""
        if not piece or cut is None or cut.anchor is not None or len(cut.rest) >= len(tail):
            return bool(piece) or token in pair.marks

        return texts_agree(cut.rest + piece, tail)

    def take_unsent(self) -> list[Node]:
        """The nodes since the last call."""
        fresh = [node for node in self._unsent if node in self.tree]
        self._unsent = []
        return fresh

    def follow_tail(self) -> None:
        """Drops what contradicts the tail, and makes the tail itself a path without branches."""
        forced = self.text.forced()
        tail = self.text.tail
        chain = [self.tree.root]
        for token in forced:
            node = chain[-1]
            node.expanded = True
            child = self.tree.append(node, token, 0.0, 0.0)
            self._make_certain(child, node.cost)
            chain.append(child)
        kept = set(chain)
        pieces = self.text.pair.draft.pieces
        stack = [(self.tree.root, b"")]
        while stack:
            node, text = stack.pop()
            for token, child in list(node.children.items()):
                longer = text + (pieces[token] or b"")
                if child in kept:
                    stack.append((child, longer))
                elif not texts_agree(longer, tail) or (len(longer) == len(tail) and token not in self.text.pair.marks):
                    self.tree.drop_subtree(child)
                elif len(longer) < len(tail):
                    stack.append((child, longer))

    def _make_certain(self, child: Node, cost: float) -> None:
        """Gives a node the cost of its parent, and those below it as much less."""
        excess = child.cost - cost
        stack = [child]
        while stack and excess:
            node = stack.pop()
            node.cost -= excess
            stack += node.children.values()

    def _emit(self, node: Node, children: Sequence[tuple[int, float, float]]) -> None:
        super()._emit(node, [child for child in children if self.continues(node, child[0])])


def texts_agree(one: bytes, other: bytes) -> bool:
    """Whether one of two texts begins with the other."""
    return one.startswith(other) or other.startswith(one)


class TranslatedDrafting(Drafting):
    """`BestFirst` in draft tokens, `Drafting` in the target's tokens: the messages are the target's."""

    def __init__(
        self,
        request: int,
        epoch: int,
        prompt_len: int,
        pair: Translator,
        rule: BestFirstRule | None = None,
        *,
        calibrator: Calibrator | None = None,
        step_s: Callable[[int], float] | None = None,
    ) -> None:
        rule = rule or BestFirstRule()
        super().__init__(request, epoch, prompt_len, rule)
        self.text = CommittedText(pair)
        self.drafts = _DraftTree(request, self.text, rule, calibrator=calibrator, step_s=step_s)

    @property
    def ready(self) -> bool:
        """Whether the whole prompt has arrived, and the draft model has a token to begin with."""
        return super().ready and len(self.drafts.prefix) > 0

    def commit(
        self, prefix_len: int, tokens: Sequence[int], digest: bytes | None = None, *, chosen: bool = True
    ) -> int:
        """As of `Drafting`; `to_read` then has the draft's tokens that became certain."""
        matched = super().commit(prefix_len, tokens, digest, chosen=chosen)
        self.to_read = self.text.commit(tokens)
        drafts = self.drafts
        former = self.drafts.cuts
        drafts.cuts = {}  # those at the committed tail have changed
        drafts.commit(len(drafts.prefix), self.to_read, chosen=chosen)
        drafts.follow_tail()
        drafts.take_unsent()
        drafts.cuts[drafts.tree.root] = Cut(None, b"", ())
        for node in drafts.tree.nodes.values():
            cut = former.get(node)
            if cut is not None and cut.anchor is not None and cut.anchor in self.tree:
                drafts.cuts[node] = cut
            else:
                self._translate(node, again=cut is not None)

        return matched

    def candidates(self) -> list[Node]:
        """Nodes of the draft tree."""
        if not self.ready or len(self.tree) >= self.rule.max_nodes:
            return []
        self.drafts.part = self.part
        return self.drafts.candidates()

    def chance(self, leaf: Node) -> float:
        """That of a node of the draft tree."""
        return self.drafts.chance(leaf)

    def position(self, path: Sequence[int]) -> int | None:
        """The target's position after a path of draft tokens; None if it is not known.

        It lies behind the target's tokens that the path stands for, as far as it goes.
        """
        node: Node | None = self.drafts.tree.root
        for token in path:
            node = node.children.get(token) if node else None
        cut = self.drafts.cuts.get(node) if node else None
        if cut is None:
            return None

        at = cut.anchor or self.tree.root
        return at.position + len(cut.tokens) + 1

    def paths(self, leaves: Sequence[Node]) -> list[tuple[int, ...]]:
        """The draft's tokens of nodes of the draft tree."""
        return self.drafts.paths(leaves)

    def record(self, candidates: Sequence[Node], proposals: Sequence[Proposal]) -> None:
        """Grows the draft tree, and the target's by what that means in its tokens."""
        self.drafts.record(candidates, proposals)
        for node in self.drafts.take_unsent():
            self._translate(node)

    def _translate(self, node: Node, *, again: bool = False) -> None:
        """Adds the target's tokens of a draft path, whose parent was translated before; `again`: it was itself."""
        pair = self.text.pair
        former = self.drafts.cuts.get(node.parent) if node.parent else None
        if former is None:  # what is above has no translation
            node.expanded = True
            return

        anchor = former.anchor
        rest = former.rest
        known = former.tokens
        mark = pair.marks.get(node.token)
        piece = pair.draft.pieces[node.token] or b""
        if mark is None:
            *over, last = pair.borders.parted(rest + piece, len(rest))
        else:
            over = [rest]
            last = b""
        share = math.exp(self.drafts.tree.root.cost - node.cost)
        for segment in over:
            tokens = self._tokens(anchor, segment)
            missing = len(segment) - (0 if anchor else len(self.text.tail)) - pair.size(tokens)
            tokens = tokens if mark is None else (*tokens, mark)
            end = self._add(anchor, tokens, len(tokens) if again else _alike(known, tokens), share, node.entropy)
            if missing or end is None:
                node.expanded = True
                return
            anchor = end
            known = ()
        tokens = self._tokens(anchor, last)
        if tokens and pair.target.pieces[tokens[-1]] != piece:
            share *= _UNSURE
        self._add(anchor, tokens, len(tokens) if again else _alike(known, tokens), share, node.entropy)
        self.drafts.cuts[node] = Cut(anchor, last, tokens)

    def _tokens(self, anchor: Node | None, segment: bytes) -> Sequence[int]:
        """The target's tokens of a segment behind `anchor`: without the committed ones, if it begins with the tail."""
        cut = self.text.pair.cut
        if anchor is not None:
            return cut(segment)
        begin = len(self.text.tail)
        if len(segment) <= begin:
            return ()

        tokens = cut(segment)
        committed = tuple(self.text.tail_tokens)

        # The target may have cut the tail otherwise than its tokenizer would.
        if tokens[: len(committed)] == committed:
            return tokens[len(committed) :]
        return cut(segment[begin:])

    def _add(
        self, anchor: Node | None, tokens: Sequence[int], counted: int, share: float, entropy: float
    ) -> Node | None:
        """Adds a path of the target's tokens; returns its end, None if it is too deep. Draft paths to one node add up.

        `share`: the probability of the draft path, which the first `counted` tokens have in theirs already.
        """
        root = self.tree.root
        node = anchor or root
        for i, token in enumerate(tokens):
            if node.position >= root.position + self.rule.max_depth:
                return None
            child = node.children.get(token)
            if child is None:
                cost = max(root.cost - math.log(max(share, _MIN_SHARE)), node.cost)
                child = self.tree.add(node, token, cost - node.cost, entropy)
                self._unsent.append(child)
            elif i >= counted:
                together = math.exp(root.cost - child.cost) + share
                child.cost = max(root.cost - math.log(max(together, _MIN_SHARE)), node.cost)
            node = child

        return node


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens at the beginning of two texts are equal."""
    if one == other[: len(one)]:  # nearly always
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


_MIN_SHARE = 1e-30
"""Of a probability, so that its logarithm is finite."""
_UNSURE = 0.7
"""How often the last token of a text stays as the text grows where it is not the draft's last token, too: 0.72 for
Gemma 3 and SmolLM2 both ways, over text and code; 0.97 where it is."""


FAR_NATS = 20.0
"""Noise lifts a token that is further below the likeliest one about once in 10**8 rows."""


class TranslatedRanker(Ranker):
    """Ranks draft tokens with the target's noise of the tokens of equal bytes, and with the noise's mean for others."""

    def __init__(self, sampling: Sampling, drafting: TranslatedDrafting, spread: Spread) -> None:
        # Without penalties and biases, which belong to the target's token numbers.
        plain = Sampling(
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            seed=sampling.seed,
        )
        super().__init__(plain, drafting.to_read, spread=spread, resolved=True)
        self._drafting = drafting

    def noisy_scores(
        self,
        candidates: Candidates,
        seed: int,
        path: Sequence[int],
        width: int,
    ) -> tuple[Tokens, Floats]:
        """The tokens that noise can lift, and their scores in nats."""
        near = np.flatnonzero(candidates.logits >= candidates.logits.max() - FAR_NATS)
        tokens = candidates.numbers[near]
        scores = candidates.logits[near] + np.euler_gamma
        position = self._drafting.position(path)
        if position is None:
            return tokens, scores

        numbers = self._drafting.text.pair.numbers[tokens]
        same = numbers >= 0
        scores[same] += gumbel(seed, position, numbers[same]) - np.euler_gamma
        return tokens, scores
