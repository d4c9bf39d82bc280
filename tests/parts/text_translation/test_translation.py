"""Drafting for a target with another tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.best_first import BestFirstRule
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.protocol.messages import ROOT, Sampling
from edgespec.parts.text_translation.translation import CommittedText, TranslatedDrafting, Translator, whole_characters
from tests.parts.text_translation.text_tokenizers import KINDS, TextTokenizer, text_tokenizer

PAIRS = [
    ("gpt2", "sentencepiece"),
    ("sentencepiece", "gpt2"),
    ("qwen", "sentencepiece"),
    ("gpt2", "qwen"),
    ("gpt2", "unigram"),
]
PROMPT = "The worker drafts a tree. "
TEXT = "The gateway verifies the tree, and the target decides each token by itself: nothing is slower (or different)."


class Oracle:
    """A draft model that knows the text: the next token of its own cut is likeliest, another one follows."""

    def __init__(self, pair: Translator, text: bytes) -> None:
        self.pair = pair
        self.text = text

    def propose(self, read: Sequence[int], path: Sequence[int]) -> Proposal:
        pieces = self.pair.draft.pieces
        known = b"".join(pieces[token] or b"" for token in (*read, *path))
        following = self.pair.draft.encode(self.text[len(known) :]) if self.text.startswith(known) else []
        others = [token for token in (300, 301, 302) if token not in following[:1]]
        costs = [0.1] * len(following[:1]) + [3.0, 4.0, 5.0][: len(others)]
        return Proposal([*following[:1], *others], costs, 0.5)


class Worker:
    """Drafts for one request as the daemon does, with the oracle in the model's place."""

    def __init__(self, pair: Translator, prompt: Sequence[int], text: bytes, **rule: Any) -> None:
        self.drafting = TranslatedDrafting(1, 1, len(prompt), pair, BestFirstRule(sequences=2, **rule))
        self.pair = pair
        self.oracle = Oracle(pair, text)
        self.read = list[int]()
        self.committed = 0
        self.commit(prompt, chosen=False)

    def commit(self, tokens: Sequence[int], *, chosen: bool = True) -> int:
        matched = self.drafting.commit(self.committed, tokens, chosen=chosen)
        self.read += self.drafting.to_read
        self.committed += len(tokens)
        return matched

    def draft(self, steps: int) -> None:
        for _ in range(steps):
            leaves = self.drafting.candidates()
            paths = self.drafting.paths(leaves)
            self.drafting.record(leaves, [self.oracle.propose(self.read, path) for path in paths])

    def right(self, *, whole: bool = False) -> int:
        """Bytes after the committed ones of the drafts which are right: up to the last border, or the `whole` text."""
        drafts = self.drafting.drafts
        tail = len(self.drafting.text.tail)
        begin = sum(len(self.pair.draft.pieces[token] or b"") for token in self.read)
        ends = [tail]
        for node in drafts.tree.nodes.values():
            text = b"".join(self.pair.draft.pieces[token] or b"" for token in node.path(drafts.tree.root))
            if self.oracle.text[begin:].startswith(text) and node in drafts.cuts:
                ends.append(len(text) - (0 if whole else len(self.pair.borders.parted(text)[-1])))
        return max(ends) - tail

    def known(self, tokens: Sequence[int]) -> list[int]:
        """Those of the tokens that the target's tree has, one after the other."""
        node = self.drafting.tree.root
        found = list[int]()
        for token in tokens:
            if (child := node.children.get(token)) is None:
                break
            node = child
            found.append(token)
        return found


def size(pair: Translator, tokens: Sequence[int]) -> int:
    return sum(len(pair.target.pieces[token] or b"") for token in tokens)


def pair_of(target: str, draft: str) -> Translator:
    return Translator(text_tokenizer(target), text_tokenizer(draft, 500))


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@settings(max_examples=12)
@given(data=st.data())
def test_whatever_way_a_text_is_committed_the_tokens_sent_are_its_own(
    target: str, draft: str, data: st.DataObject
) -> None:
    pair = pair_of(target, draft)
    words = data.draw(
        st.lists(st.sampled_from(TEXT.split()) | st.text(min_size=1, max_size=3), min_size=4, max_size=20)
    )
    text = (PROMPT + " ".join(words)).encode(errors="ignore")
    tokens = pair.target.encode(text)
    begin = len(pair.target.encode(PROMPT.encode())) - 1
    worker = Worker(pair, tokens[:begin], text)
    at = begin
    while at < len(tokens):
        worker.draft(data.draw(st.integers(0, 6)))
        if b"".join(pair.target.pieces[token] or b"" for token in tokens) == text:
            assert size(pair, worker.known(tokens[at:])) >= worker.right()
        count = data.draw(st.integers(1, 4))
        worker.commit(tokens[at : at + count])
        at += count
    read = b"".join(pair.draft.pieces[token] or b"" for token in worker.read)
    assert pair.draft.encode(read) == worker.read


@settings(max_examples=40)
@given(data=st.data(), kinds=st.sampled_from(PAIRS))
def test_any_proposals_and_commits_keep_the_tree_whole(data: st.DataObject, kinds: tuple[str, str]) -> None:
    pair = pair_of(*kinds)
    target, draft = (st.integers(0, len(one.pieces) + 3) for one in (pair.target, pair.draft))
    worker = Worker(pair, pair.target.encode(PROMPT.encode()), b"", max_nodes=64)
    sent: set[int] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        leaves = worker.drafting.candidates()
        proposals = [Proposal(data.draw(st.lists(draft, max_size=4, unique=True)), [1.0] * 4, 1.0) for _ in leaves]
        worker.drafting.record(
            leaves, [Proposal(one.tokens, one.costs[: len(one.tokens)], one.entropy) for one in proposals]
        )
        while (tree := worker.drafting.delta()) is not None:
            assert all(parent == ROOT or parent in sent or parent >= tree.first for parent in tree.parents)
            sent |= set(range(tree.first, tree.first + len(tree.tokens)))
            assert max(tree.tokens) < len(pair.target.pieces)
        node = worker.drafting.tree.root
        along = [child.token for child in node.children.values()][:1] or data.draw(
            st.lists(target, min_size=1, max_size=3)
        )
        worker.commit([min(token, len(pair.target.pieces) - 1) for token in along])


def test_a_longer_draft_token_that_agrees_with_the_tail_is_kept() -> None:
    pair = pair_of("gpt2", "sentencepiece")
    text = b"The draft model drafts a tree of tokens"
    tokens = pair.target.encode(text)
    worker = Worker(pair, tokens[:2], text)
    worker.draft(12)
    rest = tokens[2:]
    kept = worker.known(rest)
    assert len(kept) > 3
    assert worker.commit(kept[:2]) == 2
    assert worker.known(rest[2:]) == kept[2:]
    assert any(node.expanded for node in worker.drafting.drafts.tree.nodes.values())


def test_control_tokens_part_the_text_and_end_a_path_unless_both_have_them() -> None:
    pair = pair_of("gpt2", "sentencepiece")
    end, own = (max(one.controls) for one in (pair.target, pair.draft))
    text = CommittedText(pair)
    assert text.commit([*pair.target.encode(b"one two"), end]) == [*pair.draft.encode(b"one two"), own]
    assert text.tail == b""
    worker = Worker(pair, pair.target.encode(b"The draft "), b"")
    leaves = worker.drafting.candidates()
    worker.drafting.record(leaves, [Proposal([own], [0.1], 0.5)])
    assert worker.known([end]) == [end]
    assert worker.commit([end]) == 1
    assert worker.drafting.drafts.tree.root.token == own
    pair.marks.clear()
    worker = Worker(pair, pair.target.encode(b"The draft "), b"")
    worker.drafting.record(worker.drafting.candidates(), [Proposal([own], [0.1], 0.5)])
    assert not any(node.token == own for node in worker.drafting.drafts.tree.nodes.values())


def test_a_draft_reads_its_own_beginning_of_a_text_once() -> None:
    pair = pair_of("gpt2", "sentencepiece")
    (own,) = pair.draft.controls
    (end,) = pair.target.controls
    pair.draft.begin = (own,)
    try:
        words = pair.target.encode(b"one two ")
        for prompt in (words, [end, *words]):
            text = CommittedText(pair)
            assert text.commit(prompt) == [own, *pair.draft.encode(b"one two")]
            assert text.commit(pair.target.encode(b"three ")) == pair.draft.encode(b" three")
    finally:
        del pair.draft.begin


def test_a_missing_control_token_is_spelt_out_a_mark_of_a_beginning_not() -> None:
    target = text_tokenizer("gpt2")
    draft = text_tokenizer("sentencepiece", 500)

    class Other(TextTokenizer):
        def __init__(self, text: bytes) -> None:
            self.pieces, self.controls, self.encode = target.pieces, dict.fromkeys(target.controls, text), target.encode  # type: ignore[method-assign]

    (control,) = target.controls
    assert Translator(Other(b"<turn>"), draft).control(control) == draft.encode(b"<turn>")
    assert Translator(Other(b"<bos>"), draft).control(control) == []


@given(st.text(max_size=5), st.integers(0, 3))
def test_an_incomplete_character_is_left_out(text: str, missing: int) -> None:
    whole = text.encode(errors="ignore")
    cut = whole + "\U0001f600".encode()[:missing]
    assert whole_characters(cut) == whole


def test_long_text_without_borders_is_read_all_the_same() -> None:
    pair = pair_of("gpt2", "sentencepiece")
    text = CommittedText(pair)
    assert text.commit(pair.target.encode("\u4e2d\u6587".encode() * 200))
    assert len(text.tail) <= 260


@pytest.mark.parametrize("kind", KINDS[:3])
def test_with_one_tokenizer_all_that_is_drafted_is_sent_at_once(kind: str) -> None:
    pair = Translator(text_tokenizer(kind), text_tokenizer(kind))
    tokens = pair.target.encode((PROMPT + TEXT).encode())
    worker = Worker(pair, tokens[:5], (PROMPT + TEXT).encode())
    for _ in range(12):
        worker.draft(1)
        assert size(pair, worker.known(tokens[5:])) == worker.right(whole=True)
    assert len(worker.known(tokens[5:])) > 8


def test_penalties_and_biases_are_not_applied_to_the_drafts_numbers() -> None:
    asked = Sampling(0.7, top_k=5, top_p=0.9, presence_penalty=1.0, logit_bias={3: 5.0}, seed=4)
    drafting = TranslatedDrafting(1, 1, 4, pair_of("gpt2", "sentencepiece"))
    ranker = Translator.ranker(asked, drafting, Spread())
    assert ranker.sampling == Sampling(0.7, top_k=5, top_p=0.9, seed=4)


class Reversed(TextTokenizer):
    """The same tokenizer with other numbers."""

    def __init__(self, other: TextTokenizer) -> None:
        self.other = other
        last = len(other.pieces) - 1
        self.pieces = other.pieces[::-1]
        self.controls = {last - token: text for token, text in other.controls.items()}

    def encode(self, text: bytes) -> list[int]:
        return [len(self.pieces) - 1 - token for token in self.other.encode(text)]


def test_shared_noise_ranks_tokens_of_equal_bytes() -> None:
    target = text_tokenizer("gpt2")
    worker = Worker(Translator(target, Reversed(target)), target.encode(b"The draft model drafts a tr"), b"")
    worker.drafting.record(worker.drafting.candidates(), [Proposal(worker.pair.draft.encode(b" tree")[:1], [0.1], 0.5)])
    logits = np.random.default_rng(3).normal(size=len(target.pieces)).astype(np.float32)
    begin = worker.drafting.tree.root.position + 1
    (leaf,) = worker.drafting.candidates()
    (path,) = worker.drafting.paths([leaf])
    assert worker.drafting.position(path) == begin + len(path) - len(worker.drafting.text.tail_tokens)
    ranker = Translator.ranker(Sampling(1.0, seed=7), worker.drafting, Spread())
    expected = Ranker(Sampling(1.0, seed=7), [0] * worker.drafting.position(path))(logits, (), 4)
    assert [len(logits) - 1 - token for token in ranker(logits[::-1], path, 4).tokens] == expected.tokens
    assert ranker(logits[::-1], (5, 5, 5), 4).tokens == np.argsort(-logits[::-1], kind="stable")[:4].tolist()
