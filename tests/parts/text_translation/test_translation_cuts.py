"""What a translation sends: tokens that stand for the drafted text, each with its probability, and nothing that the
committed text contradicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node
from edgespec.parts.text_translation.translation import Translator
from edgespec_lab.pairs import measure
from tests.parts.text_translation.permuted import permute_tokens
from tests.parts.text_translation.test_translation import PROMPT, TEXT, Worker, pair_of, size
from tests.parts.text_translation.text_tokenizers import TextTokenizer, text_tokenizer
from tests.support.tiny_gguf import make_tiny_gguf

DATA = (PROMPT + TEXT).encode()
COST = 0.1
"""Of each proposed token: minus the logarithm of its probability."""


def token_of(pieces: Sequence[bytes | None], piece: bytes) -> int:
    """The token of these bytes."""
    return pieces.index(piece)


def draft(worker: Worker, *pieces: bytes) -> None:
    """Grows a chain of draft tokens with these texts, each of probability e^-COST."""
    node = worker.drafting.candidates()[0]
    for piece in pieces:
        token = token_of(worker.pair.draft.pieces, piece)
        worker.drafting.record([node], [Proposal([token], [COST], 0.5)])
        node = node.children[token]


def nodes(worker: Worker) -> Iterator[Node]:
    """The target's nodes below the root."""
    root = worker.drafting.tree.root
    return (node for node in worker.drafting.tree.nodes.values() if node is not root)


def texts(worker: Worker) -> set[bytes]:
    """The text of each path of the draft tree."""
    drafts = worker.drafting.drafts
    pieces = worker.pair.draft.pieces
    paths = (node.path(drafts.tree.root) for node in drafts.tree.nodes.values())
    return {b"".join(pieces[token] or b"" for token in path) for path in paths}


@pytest.mark.parametrize(("target", "draft_kind"), [("gpt2", "sentencepiece"), ("qwen", "gpt2")])
def test_a_tail_that_was_cut_otherwise_is_continued_by_its_text(target: str, draft_kind: str) -> None:
    """The target emits the beginning of a word byte by byte, which its tokenizer would not."""
    pair = pair_of(target, draft_kind)
    at = len(PROMPT.encode())
    begin = DATA[at : at + 6]
    rest = DATA[at + 6 :]
    letters = [token_of(pair.target.pieces, bytes([byte])) for byte in begin]
    assert len(letters) > len(pair.target.encode(begin))
    worker = Worker(pair, [*pair.target.encode(PROMPT.encode()), *letters], DATA)

    worker.draft(12)

    pieces = pair.target.pieces
    root = worker.drafting.tree.root
    sent = [b"".join(pieces[token] or b"" for token in node.path(root)) for node in nodes(worker)]
    longest = max((len(text) for text in sent if rest.startswith(text)), default=0)
    assert longest >= 8, "the oracle's text is among what is sent"


class Lossy(TextTokenizer):
    """Writes other letters than those of the text, as a tokenizer with normalisation does."""

    def __init__(self, other: TextTokenizer) -> None:
        self.other = other
        self.pieces = other.pieces
        self.controls = other.controls

    def encode(self, text: bytes) -> list[int]:
        return self.other.encode(text.replace(b"z", b"s"))


def test_a_cut_that_does_not_give_its_text_back_is_not_sent() -> None:
    pair = Translator(Lossy(text_tokenizer("gpt2")), text_tokenizer("sentencepiece", 500))
    assert pair.cut(b" the zone") == ()
    assert size(pair, pair.cut(b" the sone")) == len(b" the sone")


def test_draft_paths_that_contradict_the_tail_are_dropped() -> None:
    pair = pair_of("gpt2", "gpt2")
    worker = Worker(pair, pair.target.encode(PROMPT.strip().encode()), b"")
    (leaf,) = worker.drafting.candidates()
    proposed = [token_of(pair.draft.pieces, piece) for piece in (b" ", b"x", b"t")]
    worker.drafting.record([leaf], [Proposal(proposed, [COST] * 3, 0.5)])
    assert {b" tree. ", b" tree.x", b" tree.t"} <= texts(worker), "behind the tail"

    worker.commit([token_of(pair.target.pieces, bytes([byte])) for byte in b" caf"])

    assert b" " in texts(worker)
    assert not any(text.startswith((b"x", b"t")) for text in texts(worker))


def test_a_draft_token_that_contradicts_the_tail_does_not_grow() -> None:
    """The tail ends within a character, so the draft model writes the rest of the tail, and nothing else."""
    pair = pair_of("gpt2", "gpt2")
    worker = Worker(pair, pair.target.encode(PROMPT.strip().encode()), b"")
    worker.commit([token_of(pair.target.pieces, bytes([byte])) for byte in b" caf\xc3"])
    assert b" caf" in texts(worker) and b" caf\xc3" not in texts(worker)

    (leaf,) = worker.drafting.candidates()
    proposed = [token_of(pair.draft.pieces, bytes([byte])) for byte in (0xC3, ord("a"))]
    worker.drafting.record([leaf], [Proposal(proposed, [COST] * 2, 0.5)])

    assert b" caf\xc3" in texts(worker)
    assert not any(text.startswith(b" cafa") for text in texts(worker))


def test_one_path_of_the_draft_tree_writes_the_tail() -> None:
    """The tail's own cut; another cut of the same text would be drafted on a second time."""
    pair = pair_of("gpt2", "gpt2")
    prompt = pair.target.encode(PROMPT.strip().encode())
    worker = Worker(pair, prompt, b"")
    draft(worker, b" ", b"t", b"h")
    tail = b" th"
    assert len(pair.draft.encode(tail)) < 3

    worker.commit([token_of(pair.target.pieces, bytes([byte])) for byte in tail])

    drafts = worker.drafting.drafts
    pieces = pair.draft.pieces
    paths = [node.path(drafts.tree.root) for node in drafts.tree.nodes.values()]
    same = [path for path in paths if b"".join(pieces[token] or b"" for token in path) == tail]
    assert same == [tuple(pair.draft.encode(tail))]


@pytest.mark.parametrize("kind", ["gpt2", "qwen"])
def test_a_token_that_is_sent_has_the_probability_of_its_draft_path(kind: str) -> None:
    """With one tokenizer; a longer draft path repeats the tokens of a shorter one, whose share counts once."""
    pair = Translator(text_tokenizer(kind), text_tokenizer(kind))
    worker = Worker(pair, pair.target.encode(PROMPT.strip().encode()), b"")
    draft(worker, b" ", b"q", b"z", b"j")

    root = worker.drafting.tree.root
    costs = {node.position - root.position: node.cost - root.cost for node in nodes(worker)}
    assert costs == pytest.approx({1: COST, 2: 2 * COST, 3: 3 * COST, 4: 4 * COST})


def test_the_last_token_of_a_text_that_may_go_on_is_less_probable() -> None:
    """Unless it is the draft's own last token: 0.7 for other ones, as was measured."""
    target = text_tokenizer("gpt2")
    drafts = text_tokenizer("gpt2", 300)
    pair = Translator(target, drafts)
    worker = Worker(pair, target.encode(PROMPT.strip().encode()), b"")
    word = b" the"
    assert len(target.encode(word)) == 1 and token_of(drafts.pieces, b"e")
    draft(worker, b" ", b"t", b"h", b"e")

    root = worker.drafting.tree.root
    node = root.children[target.encode(word)[0]]
    assert node.cost - root.cost == pytest.approx(4 * COST - math.log(0.7))


def test_a_permuted_tokenizer_keeps_every_accepted_token(tmp_path: Path) -> None:
    """A random model and its copy with other token numbers, in lockstep: 105 of 120 tokens in 18 rounds, as without."""
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    permuted = tmp_path / "permuted.gguf"
    permute_tokens(model, permuted, fixed=3)
    prompts = ["the worker drafts in a tree", "a gateway verifies the tokens", "in the end"]

    alone = measure(model, model, prompts, 40)
    translated = measure(model, permuted, prompts, 40)

    assert (alone.tokens, alone.rounds, alone.in_tree) == (120, 18, 105)
    assert (translated.tokens, translated.rounds, translated.in_tree) == (120, 18, 105)
    assert translated.right == alone.right == 1.0
