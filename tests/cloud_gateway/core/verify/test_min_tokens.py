"""`min_tokens`: the end of a completion is due exactly after the least number of tokens, whatever was drafted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from cloud_gateway.core.verify.accept import FlatTree, walk
from cloud_gateway.core.verify.verification import SharedNoise, at_least
from edgespec.core.drafting.ranking import Spread
from edgespec.core.protocol.messages import Sampling
from tests.cloud_gateway.core.verify.test_shared_noise import PROMPT, VOCAB, Model

EOS = 5
MIN = 6
SAMPLINGS = [Sampling(), Sampling(presence_penalty=0.5), Sampling(temperature=1.2, top_k=8, seed=4)]
"""Greedy by the argmax of the rows, greedy by their logits, and sampled."""


def eager(seed: int) -> Model:
    """A target whose most probable token is always the end, by far."""
    model = Model(seed)
    model.table[:, :, EOS] += 50
    return model


def chain(committed: Sequence[int], drafted: Sequence[int]) -> FlatTree:
    """The drafted tokens one after the other."""
    tokens = [committed[-1], *drafted]
    return FlatTree(tokens, list(range(-1, len(drafted))), list(range(len(tokens))))


def completion(model: Model, sampling: Sampling, drafts: Callable[[int], Sequence[int]]) -> list[int]:
    """The tokens up to the end; `drafts` proposes what follows so many tokens."""
    method = at_least(MIN, {EOS}, SharedNoise(sampling, PROMPT, Spread()))
    committed = list(PROMPT)
    while EOS not in committed[len(PROMPT) :]:
        flat = chain(committed, drafts(len(committed) - len(PROMPT)))
        taken = walk(flat, method.at(flat, model.verify(committed, flat)), stop={EOS}.__contains__, limit=4 * MIN)
        method.committed(taken.tokens)
        committed += taken.tokens
        assert len(committed) <= len(PROMPT) + 4 * MIN, "the end never comes"
    return committed[len(PROMPT) :]


def right_drafts(tokens: Sequence[int], seed: int) -> Callable[[int], Sequence[int]]:
    """Drafts what follows, up to some number of tokens, drawn again for each pass."""
    lengths = random.Random(seed)
    return lambda count: tokens[count : count + lengths.randint(0, MIN + 1)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["argmax", "logits", "sampled"])
@pytest.mark.parametrize("seed", range(40))
def test_the_end_is_due_exactly_after_the_least_tokens(sampling: Sampling, seed: int) -> None:
    model = eager(seed)
    alone = completion(model, sampling, lambda count: [])
    assert alone.index(EOS) == MIN
    assert completion(model, sampling, right_drafts(alone, seed)) == alone


def paths(most: int) -> Iterator[list[int]]:
    """A path of each length up to `most`."""
    return itertools.accumulate(range(most), lambda path, token: [*path, token], initial=[])


def test_the_draft_proposes_the_end_from_the_least_tokens_on() -> None:
    method = at_least(MIN, {EOS}, SharedNoise(Sampling(), PROMPT, Spread()))
    logits = np.zeros(VOCAB, np.float32)
    logits[EOS] = 9.0
    proposes = [EOS in method.rank(logits, path, 4).tokens for path in paths(MIN + 2)]
    assert proposes == [False] * MIN + [True] * 3

    method.committed([1, 2])
    proposes = [EOS in method.rank(logits, path, 4).tokens for path in paths(MIN)]
    assert proposes == [False] * (MIN - 2) + [True] * 3
