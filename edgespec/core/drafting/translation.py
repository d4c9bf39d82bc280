"""Drafting with a draft model of another tokenizer than the target's (string-level matching: arXiv 2502.05202).

The target decides every token itself, so a translation can cost acceptance and never correctness. Three texts are kept
apart by borders that no token of either tokenizer crosses (borders.py):

- committed text before the last border is cut into draft tokens for good; the draft model reads these;
- the committed tail behind it may still be cut otherwise, so it is a path in the draft tree that nothing else leaves;
- a draft path becomes target tokens up to its last border; what follows could still be cut otherwise and waits.

Paths of the draft tree whose bytes contradict the tail are dropped; one that is longer than the tail and agrees with it
stays. Control tokens end a draft path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgespec.core.drafting.algorithm2 import Drafting, Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.borders import Borders
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node
from edgespec.core.protocol.messages import Sampling


class Tokenizer(Protocol):
    """A tokenizer as far as translation needs it."""

    @property
    def pieces(self) -> Sequence[bytes | None]:
        """The bytes of each token in id order; None for control tokens."""

    @property
    def controls(self) -> Mapping[int, bytes]:
        """The text of each control token."""

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text that begins at a border, without any that begin or end a prompt."""


class Translator:
    """A pair of tokenizers; shared by all requests of a draft model."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target, self.draft = target, draft
        self.borders = Borders(target.pieces, draft.pieces)
        own = {text: token for token, text in draft.controls.items()}
        self._controls = {token: own.get(text) for token, text in target.controls.items()}
        """A target's control token -> the draft's token of the same text, if it has one."""

    def control(self, token: int) -> list[int]:
        """Draft tokens for one of the target's control tokens: the one of the same text, else its text in letters.

        A begin-of-text mark that the draft lacks is not spelt out, since models read no such text.
        """
        same = self._controls.get(token)
        text = self.target.controls[token]
        return [same] if same is not None else [] if text in _UNWRITTEN else self.draft.encode(text)


_UNWRITTEN = frozenset((b"<bos>", b"<s>", b"<|begin_of_text|>", b"<|endoftext|>", b"<unk>", b"<pad>"))


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

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Takes the target's tokens; returns the draft's tokens that became certain."""
        pair, certain = self.pair, list[int]()
        for token in tokens:
            piece = pair.target.pieces[token] if token < len(pair.target.pieces) else b""
            if piece is None:
                certain += self._close() + pair.control(token)
                continue
            if (self.tail and piece and pair.borders.between(self.tail[-1], piece[0])) or len(self.tail) >= MAX_TAIL:
                certain += self._close()
            self.tail += piece
            self.tail_tokens.append(token)
        return certain

    def forced(self) -> list[int]:
        """The draft's tokens of the tail, without the bytes of a character that is not complete."""
        return self.pair.draft.encode(whole) if (whole := whole_characters(self.tail)) else []

    def _close(self) -> list[int]:
        tail, self.tail, self.tail_tokens = self.tail, b"", []
        return self.pair.draft.encode(tail) if tail else []


def whole_characters(text: bytes) -> bytes:
    """The text without an incomplete UTF-8 sequence at its end (RFC 3629)."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if back < needed else text
        if byte < 0x80:
            return text
    return text


class _DraftTree(BestFirst):
    """The tree of draft tokens, whose paths agree with the tail of the committed text."""

    def __init__(self, request: int, text: CommittedText, rule: BestFirstRule, **rest: Any) -> None:
        super().__init__(request, 0, 1, rule, **rest)
        self.text = text

    def bytes_of(self, node: Node) -> bytes:
        """The text of a path, from the last border of the committed text on."""
        pieces = self.text.pair.draft.pieces
        return b"".join(pieces[token] or b"" for token in node.path(self.tree.root))

    def continues(self, text: bytes, token: int) -> bool:
        """Whether a token may follow this text: no control token, and no contradiction to the tail."""
        pieces, tail = self.text.pair.draft.pieces, self.text.tail
        piece = pieces[token] if token < len(pieces) else None
        return bool(piece) and agree(text + (piece or b""), tail)

    def take_unsent(self) -> list[Node]:
        """The nodes since the last call."""
        fresh, self._unsent = [node for node in self._unsent if node in self.tree], []
        return fresh

    def follow_tail(self) -> None:
        """Drops what contradicts the tail, and makes the tail itself a path without branches."""
        forced, tail = self.text.forced(), self.text.tail
        chain = [self.tree.root]
        for token in forced:
            node = chain[-1]
            node.expanded = True
            child = self.tree.append(node, token, 0.0, 0.0)
            self._make_certain(child, node.cost)
            chain.append(child)
        kept, pieces = set(chain), self.text.pair.draft.pieces
        stack = [(self.tree.root, b"")]
        while stack:
            node, text = stack.pop()
            for token, child in list(node.children.items()):
                longer = text + (pieces[token] or b"")
                if child in kept or (len(longer) > len(tail) and agree(longer, tail)):
                    stack.append((child, longer))
                else:
                    self.tree.drop_subtree(child)

    def _make_certain(self, child: Node, cost: float) -> None:
        """Gives a node the cost of its parent, and those below it as much less."""
        excess, stack = child.cost - cost, [child]
        while stack and excess:
            node = stack.pop()
            node.cost -= excess
            stack += node.children.values()

    def _emit(self, node: Node, children: Sequence[tuple[int, float, float]]) -> None:
        text = self.bytes_of(node)
        super()._emit(node, [child for child in children if self.continues(text, child[0])])


def agree(one: bytes, other: bytes) -> bool:
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
        self.drafts.commit(len(self.drafts.prefix), self.to_read, chosen=chosen)
        self.drafts.follow_tail()
        self._translate(self.drafts.take_unsent())
        return matched

    def candidates(self) -> list[Node]:
        """Nodes of the draft tree."""
        if not self.ready or len(self.tree) >= self.rule.max_nodes:
            return []
        self.drafts.part = self.part
        return self.drafts.candidates()

    def ranked_by(self, sampling: Sampling) -> Sampling:
        """Temperature and filters only: noise, penalties and biases belong to the target's token numbers."""
        return Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)

    def paths(self, leaves: Sequence[Node]) -> list[tuple[int, ...]]:
        """The draft's tokens of nodes of the draft tree."""
        return self.drafts.paths(leaves)

    def record(self, candidates: Sequence[Node], proposals: Sequence[Proposal]) -> None:
        """Grows the draft tree, and the target's by what that makes certain."""
        self.drafts.record(candidates, proposals)
        self._translate(self.drafts.take_unsent())

    def _translate(self, fresh: Sequence[Node]) -> None:
        """Adds what new nodes of the draft tree make certain: mostly their parent, and all siblings the same."""
        pieces, borders, tail = self.text.pair.draft.pieces, self.text.pair.borders, len(self.text.tail)
        for parent, children in _by_parent(fresh).items():
            before = self.drafts.bytes_of(parent)
            known, shares = max(tail, len(before) - 1), dict[bytes, float]()
            for node in children:
                text = before + (pieces[node.token] or b"")
                end = borders.last(text, known)
                if end > known:
                    share = math.exp(self.drafts.tree.root.cost - node.cost)
                    shares[text[:end]] = shares.get(text[:end], 0.0) + share
            for certain, share in shares.items():
                self._add(certain, borders.last(before, tail), share, children[0].entropy)

    def _add(self, text: bytes, known: int, share: float, entropy: float) -> None:
        """Adds the target's tokens of a text that ends at a border.

        `known`: bytes of it that an earlier draft token had made certain. `share`: the probability of what makes the
        rest certain; several draft paths to one target path add up.
        """
        target, committed = self.text.pair.target, self.text.tail_tokens
        tokens, node, end = target.encode(text), self.tree.root, len(self.text.tail)
        if tokens[: len(committed)] == committed:
            tokens = tokens[len(committed) :]
        else:  # the target cut the tail otherwise than its tokenizer would
            tokens = target.encode(text[end:])
        for token in tokens:
            piece = target.pieces[token]
            if not piece:
                return
            end += len(piece)
            child = node.children.get(token)
            if child is None:
                cost = max(self.tree.root.cost - math.log(max(share, _LEAST)), node.cost)
                child = self.tree.add(node, token, cost - node.cost, entropy)
                self._unsent.append(child)
            elif end > known:
                together = math.exp(self.tree.root.cost - child.cost) + share
                child.cost = max(self.tree.root.cost - math.log(max(together, _LEAST)), node.cost)
            node = child


_LEAST = 1e-30
"""Of a probability, so that its logarithm is finite."""


def _by_parent(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    found = dict[Node, list[Node]]()
    for node in nodes:
        if node.parent is not None:
            found.setdefault(node.parent, []).append(node)
    return found
