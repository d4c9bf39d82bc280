"""A local draft with other tokens than the target's proposes what the untranslated one does, in the target's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloud_gateway.models.drafts.gguf import LocalDraft
from cloud_gateway.parts.text_translation.draft import CUT, NEVER, TranslatedDraft, _Request
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, TokenPath, best_children
from edgespec.core.errors import ModelError
from edgespec.parts.text_translation.gguf import translation
from edgespec.parts.text_translation.translation import CommittedText, Translator
from edgespec.shared.vocabfiles import gguf_vocabulary
from tests.parts.text_translation.permuted import permute_tokens
from tests.parts.text_translation.text_tokenizers import text_tokenizer
from tests.support.tiny_gguf import make_tiny_gguf

VOCAB = 300


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalDraft, TranslatedDraft]]:
    """The same model twice: as it is, and behind other token numbers."""
    folder = tmp_path_factory.mktemp("drafts")
    own = make_tiny_gguf(folder / "own.gguf", vocab=VOCAB)
    permute_tokens(own, folder / "other.gguf", fixed=3)
    pair = translation(own, folder / "other.gguf", gguf_vocabulary(folder / "other.gguf").digest)
    assert pair is not None
    plain = LocalDraft(own, context=1024)
    other = TranslatedDraft(folder / "other.gguf", pair, target_vocab_size=VOCAB, context=1024)
    yield plain, other
    plain.shutdown()
    other.shutdown()


def prompt(other: TranslatedDraft) -> list[int]:
    return other._pair.target.encode(b"the draft in a tree and the ")


def test_rows_are_those_of_the_untranslated_draft(drafts: tuple[LocalDraft, TranslatedDraft]) -> None:
    other = drafts[1]
    encode = other._pair.target.encode
    rows = dict[LocalDraft, list[NDArray[np.float32]]]()
    tokens = prompt(other)
    rest = encode(b" a thing in the inn, and the other tree")
    for draft in drafts:
        found = rows[draft] = []

        def rank(row: NDArray[np.float32], path: TokenPath, width: int, found: Any = found) -> Proposal:
            found.append(row.copy())
            return best_children(row, path, width)

        draft.open(1, tokens)
        for at in range(0, len(rest) - 4, 4):
            for depth in range(4):
                draft.draft([Asked(1, [tuple(rest[at : at + depth])], 3, rank)])
            draft.commit(1, rest[at : at + 4])
        draft.close(1)
    for plain, row in zip(*rows.values(), strict=True):
        same = row != NEVER
        assert np.isclose(row[same], plain[same], atol=1e-3).sum() >= same.sum() - CUT
        assert same.sum() >= VOCAB - CUT
    assert other._translated == {}


def test_any_paths_and_commits_are_answered(drafts: tuple[LocalDraft, TranslatedDraft]) -> None:
    _, other = drafts
    paths = st.lists(st.integers(0, VOCAB - 1), max_size=3)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.tuples(st.lists(paths, min_size=1, max_size=4), paths)))
    def walk(rounds: Sequence[tuple[Sequence[Sequence[int]], Sequence[int]]]) -> None:
        other.open(2, prompt(other))
        for leaves, tokens in rounds:
            (found,) = other.draft([Asked(2, [tuple(path) for path in leaves], 2)])
            assert len(found) == len(leaves)
            for one in found:
                assert len(one.tokens) == len(one.costs) and all(0 <= token < VOCAB for token in one.tokens)
            if tokens:
                other.commit(2, tokens)
        other.close(2)

    walk()


class Bare(TranslatedDraft):
    """The translation alone, with a row of logits in the model's place."""

    def __init__(self, pair: Translator) -> None:
        self._pair = pair
        self._size = len(pair.target.pieces)
        self._own = np.flatnonzero(pair.numbers >= 0)
        self._translated = {}


def test_a_longer_draft_token_goes_on_without_the_model() -> None:
    pair = Translator(text_tokenizer("gpt2", 400), text_tokenizer("gpt2", 900))
    longer = next(
        token for token, piece in enumerate(pair.draft.pieces)
        if piece and piece.startswith(b" ") and piece.isascii() and len(pair.target.encode(piece)) > 2
    )  # fmt: skip
    draft = Bare(pair)
    word = pair.target.encode(pair.draft.pieces[longer] or b"")
    state = draft._translated[1] = _Request(CommittedText(pair))
    state.text.commit(pair.target.encode(b"one two"))
    logits = np.full(len(pair.draft.pieces), -5.0, np.float32)
    logits[longer] = 9.0
    row = draft._row(state, (), logits)
    assert row.argmax() == word[0]
    path: tuple[int, ...] = (word[0],)
    for token in word[1:]:
        ((proposal,),) = draft.draft([Asked(1, [path], 4)])
        assert proposal.tokens[0] == token and proposal.costs[0] == pytest.approx(0.0, abs=1e-4)
        path = (*path, token)
    assert path not in state.going_on


def test_a_request_without_text_goes_without_the_local_draft(drafts: tuple[LocalDraft, TranslatedDraft]) -> None:
    with pytest.raises(ModelError, match="no token to begin with"):
        drafts[1].open(3, [])
    assert best_children(np.array([NEVER, 1.0], np.float32), (), 1).tokens == [1]
