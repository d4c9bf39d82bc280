"""Requests through the real decoding, sampling and ranking: nothing raises, and one call gives one answer.

A body becomes a `GenerationRequest` as in the gateway. Its first tokens are then chosen twice from the rows of a table
model: by plain decoding, and with candidates from the ranking that workers use. Both must be the same tokens.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np

from cloud_gateway.api.bodies import CheckedBody, check_ends, grammar_of
from cloud_gateway.api.generation import ServedModel, generations
from cloud_gateway.api.grammars import Constraints
from cloud_gateway.api.parameters import fields_of, options_of
from cloud_gateway.api.schema import ChatBody, Common, CompletionBody, chat_messages, decode
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.verify.accept import FlatTree, walk
from cloud_gateway.core.verify.interface import ConstraintError
from cloud_gateway.core.verify.verification import CompletionStart, Verification, method_of, worker_sampling_of
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.best_first import BestFirst
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.errors import ClientError
from edgespec.core.protocol.messages import MAX_COST, Open, check_tree_shape
from tools.doubles.limits import request_limits
from tools.doubles.model import Rows
from tools.fuzz.bodies import Body, body
from tools.fuzz.model import ALONE, CHOICES, METHODS, PARAMETERS, TableModel, constraint_of, table
from tools.parts import READINGS

VOCABULARIES = (1, 2, 3, 17, 64, 64, 64, 64, 300, 1100)
"""Above 1024 only tokens near the best one are looked at (`sampling.shortlist`)."""
GRAMMAR_VOCABULARY = 64
TOKENS = 2
"""Most tokens of an answer: later ones meet no other code."""
LIMITS = request_limits(max_tokens_limit=16, max_choices=8, choices=CHOICES, parameters=PARAMETERS)
MANY = 3
"""Siblings that the ranking proposes."""

_open = msgspec.msgpack.Decoder(Open).decode


def shown(seed: str) -> str:
    """The body of a case."""
    return json.dumps(_drawn(random.Random(seed))[2])


def _drawn(rng: random.Random) -> tuple[bool, int, Body, str | None]:
    """Whether it is a chat, the vocabulary's size, the body, and the parameter out of its range."""
    chat = rng.random() < 0.6
    vocab_size = rng.choice(VOCABULARIES)
    return chat, vocab_size, *body(rng, chat, vocab_size, most_tokens=TOKENS)


def case(seed: str) -> str:
    """One body. Returns what became of it; raises AssertionError, or whatever leaves the gateway's code."""
    rng = random.Random(seed)
    chat, vocab_size, made, wrong = _drawn(rng)
    if made.get("response_format"):
        vocab_size = GRAMMAR_VOCABULARY
    request = _request(json.dumps(made).encode(), ChatBody if chat else CompletionBody, vocab_size, wrong)
    if request is None:
        return "refused"

    assert wrong is None, f"{wrong} lies outside its range and was let in"
    if made.get("seed") is None:
        request = _seeded(request, rng.randrange(2**63))
    model = table(vocab_size, rng.randrange(2), rng.random() < 0.5)
    configured = PolicySettings()
    if rng.random() < 0.16:
        configured = PolicySettings(verification=rng.choice(sorted(METHODS)))
    chosen = request.speculation.over(configured)
    method = method_of(request.sampling, METHODS[chosen.verification])
    fresh = partial(np.random.default_rng, rng.randrange(2**32))
    begin = partial(
        method.begin, CompletionStart(request.sampling, request.tokens, request.constraint, Spread(), fresh)
    )
    draft = table(vocab_size, 100 + rng.randrange(2), rng.random() < 0.5)
    constrained = request.constraint is not None
    if rng.random() < 0.5:  # a second call costs as much as all else
        _answer(request, begin(), model, None if constrained or rng.random() < 0.5 else draft)
    elif method.seeded and not constrained:
        plain = _answer(request, begin(), model, None)
        assert _answer(request, begin(), model, draft) == plain, "candidates changed the answer"
    else:
        once = _answer(request, begin(), model, None if constrained else draft)
        assert constrained or _answer(request, begin(), model, draft) == once, "the same call gave another answer"
    if rng.random() < 0.1:
        _worker(request, worker_sampling_of(request.sampling, method).seed, draft, vocab_size)
    return method.name


def _request(data: bytes, kind: type[Common], vocab_size: int, wrong: str | None) -> GenerationRequest | None:
    """What the engine is asked; None for a body that is refused with 400."""
    served = ServedModel("fuzz", created=0, context=512, vocab_size=vocab_size, fingerprint="f")
    try:
        decoded, values = decode(data, kind, fields_of(PARAMETERS, kind), CHOICES)
        prompts = _prompts(decoded, vocab_size)
        options = options_of(PARAMETERS, kind, values)
        grammar = grammar_of(options)
        constraint: Constraints | None = None
        if grammar is not None:
            check_ends(decoded)
            constraint = constraint_of(grammar)
        annotator = CheckedBody(decoded, decoded, 1, options, grammar).annotator(lambda token: b"%d" % token)
        reader = annotator.reader if annotator is not None else None
        requests = generations(
            decoded, prompts, served, LIMITS, may_offload=True, constraint=constraint, row_reader=reader
        )
    except ClientError as error:
        assert error.status == 400, f"{error.status} for a body"
        assert wrong is None or error.param == wrong, f"{wrong} was out of its range, and {error.param} refused"
        return None

    return requests[-1]


def _seeded(request: GenerationRequest, seed: int) -> GenerationRequest:
    """With a seed of the case in place of the one that the gateway draws, so that the case's name repeats it."""
    return replace(request, sampling=msgspec.structs.replace(request.sampling, seed=seed))


def _prompts(decoded: Common, vocab_size: int) -> list[list[int]]:
    if isinstance(decoded, ChatBody):
        chat_messages(decoded.messages)
        return [[1 % vocab_size, 0, vocab_size - 1]]

    assert isinstance(decoded, CompletionBody)
    given = decoded.prompt
    if isinstance(given, str):
        return [[0, 1 % vocab_size]]

    lists = [one for one in given if isinstance(one, list)]
    return lists or [[one for one in given if isinstance(one, int)]]


def _answer(request: GenerationRequest, chosen: Verification, model: TableModel, draft: TableModel | None) -> list[int]:
    """The first tokens of the answer; with `draft`, in rounds over candidates that it proposes."""
    prefix = list(request.tokens)
    answer = list[int]()
    while len(answer) < request.max_tokens:
        flat = ALONE if draft is None else _candidates(chosen, draft, prefix)
        rows = Rows(model, prefix, flat)
        try:
            taken = walk(flat, chosen.at(flat, rows), limit=request.max_tokens - len(answer))
        except ConstraintError:  # the table's model does not keep to the grammar, which may have ended
            assert request.constraint is not None
            return answer
        for row, token in zip(taken.rows, taken.tokens, strict=True):
            assert type(token) is int and 0 <= token < model.vocab_size, f"token {token!r} of {model.vocab_size}"
            if request.row_reader is not None:
                reading = request.row_reader.read(rows.logits(row), token)
                for check in READINGS:
                    check(reading)
        if request.constraint is not None:
            if taken.tokens[-1] == 0:
                return answer
            request.constraint.committed(taken.tokens)
        chosen.committed(taken.tokens)
        prefix += taken.tokens
        answer += taken.tokens

    return answer


def _candidates(chosen: Verification, draft: TableModel, prefix: Sequence[int]) -> FlatTree:
    """The most probable tokens after the prefix, and those after the first of them."""
    tokens = [prefix[-1]]
    parents = [-1]
    depths = [0]
    first = chosen.rank(draft.logits(prefix), (), MANY)
    _check_proposal(first, draft.vocab_size)
    found_below = [(0, first)]
    if len(prefix) % 2:  # each ranking costs as much as choosing a token
        below = chosen.rank(draft.logits([*prefix, first.tokens[0]]), (first.tokens[0],), 2)
        _check_proposal(below, draft.vocab_size)
        found_below.append((1, below))
    for parent, found in found_below:
        for token in found.tokens:
            tokens.append(token)
            parents.append(parent)
            depths.append(parent + 1)

    return FlatTree(tokens, parents, depths)


def _check_proposal(found: Proposal, vocab_size: int) -> None:
    assert 1 <= len(found.tokens) == len(set(found.tokens)) == len(found.costs), "tokens of a proposal"
    assert all(0 <= token < vocab_size for token in found.tokens), "a proposal outside the vocabulary"
    assert all(0 <= cost <= MAX_COST / 1000 for cost in found.costs), f"costs {found.costs}"
    assert 0 <= found.entropy <= math.log(vocab_size) + 0.05, f"entropy {found.entropy} of {vocab_size} tokens"


def _worker(request: GenerationRequest, seed: int | None, draft: TableModel, vocab_size: int) -> None:
    """The same request at a worker: its parameters pass the wire, and its frames the shape check."""
    reported = msgspec.structs.replace(request.sampling, seed=seed)
    prompt = list(request.tokens)
    opening = _open(msgspec.msgpack.encode(Open(1, 1, len(prompt), prompt, reported)))
    assert opening.sampling == reported, "the wire changed the parameters"
    ranker = Ranker(opening.sampling, prompt, resolved=True)
    drafting = BestFirst(1, 1, len(prompt))
    drafting.commit(0, prompt)
    for _ in range(2):
        leaves = drafting.candidates()[:4]
        paths = [leaf.path(drafting.tree.root) for leaf in leaves]
        drafting.record(leaves, [ranker(draft.logits([*prompt, *path]), path, 4) for path in paths])
        frame = drafting.delta()
        if frame is not None:
            check_tree_shape(frame, vocab_size)
    token = draft.argmax(prompt)
    drafting.commit(len(prompt), [token])
    ranker.committed([token])
    assert np.isfinite(ranker.spread._loss).all(), "what is learnt is not finite"
