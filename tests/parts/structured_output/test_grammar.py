"""Constrained completions, by a schema or a tool: always valid, and the same with any draft."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.core.verify.interface import ConstraintError
from cloud_gateway.core.verify.shared_noise import path_to
from cloud_gateway.parts.structured_output.grammar import (
    MAX_KEPT,
    MAX_KEPT_BYTES,
    MAX_NODES,
    GrammarConstraint,
    GuidedGrammars,
)
from edgespec.core.errors import ClientError
from edgespec.core.protocol.messages import Sampling
from tests.support.constrained import PROMPT, Letters, answer, draft, json_form, text_of
from tests.support.rows import Softmax
from tests.support.schemas import NESTED, keeps_nested
from tests.support.tiny_tokenizer import EOS_ID, PADDED_VOCAB
from tools.doubles.engines import TableTarget
from tools.doubles.workers import LoopWorker

pytestmark = pytest.mark.driven


def walk(constraint: GrammarConstraint, rng: random.Random, most: int = 300) -> list[int]:
    """A random answer that the constraint allows."""
    tokens: list[int] = []
    while len(tokens) < most and EOS_ID not in tokens:
        tokens.append(rng.choice(np.flatnonzero(constraint([])).tolist()))
        constraint.committed(tokens[-1:])
    return tokens


def test_any_walk_through_the_masks_is_valid_and_ends_where_it_may(grammars: GuidedGrammars, tokenizer: Any) -> None:
    schema = grammars.compile(json_form(NESTED))
    for seed in range(30):
        tokens = walk(schema.constraint(), random.Random(seed))
        assert tokens[-1] == EOS_ID
        assert keeps_nested(json.loads(text_of(tokenizer, tokens))), text_of(tokenizer, tokens)


def test_a_mask_depends_on_the_path_and_not_on_earlier_calls(grammars: GuidedGrammars) -> None:
    rng = random.Random(5)
    schema = grammars.compile(json_form(NESTED))
    jumping = schema.constraint()
    answer = walk(schema.constraint(), rng)[:-1]
    committed = 0
    for _ in range(200):
        path = answer[committed : committed + rng.randrange(6)]
        branch = rng.choice(np.flatnonzero(jumping(path)).tolist())
        for asked in (path, [*path, branch] if branch != EOS_ID else path, path[:1]):
            fresh = schema.constraint()
            fresh.committed(answer[:committed])
            assert np.array_equal(jumping(asked), fresh(asked)), (committed, asked)
        if committed + 8 < len(answer) and rng.random() < 0.2:
            jumping.committed(answer[committed : committed + 2])
            committed += 2


def test_a_path_is_allowed_as_far_as_the_masks_say(grammars: GuidedGrammars) -> None:
    """The slow twin computes one mask after the other; the end of the completion never counts."""
    rng = random.Random(3)
    schema = grammars.compile(json_form(NESTED))
    full = walk(schema.constraint(), rng)
    for _ in range(100):
        start = rng.randrange(len(full) - 1)
        constraint = schema.constraint()
        constraint.committed(full[:start])
        path = [t if rng.random() < 0.9 else rng.randrange(PADDED_VOCAB) for t in full[start : start + 8]]
        count = 0
        while count < len(path) and path[count] != EOS_ID and constraint(path[:count])[path[count]]:
            count += 1
        assert constraint.allowed(path) == count


def test_what_is_forced_is_the_only_text_that_may_follow(grammars: GuidedGrammars, tokenizer: Any) -> None:
    schema = grammars.compile(json_form(NESTED))
    found = 0
    for seed in range(8):
        full = walk(schema.constraint(), random.Random(seed))[:-1]
        for start in range(0, len(full), 3):
            constraint = schema.constraint()
            constraint.committed(full[:start])
            forced = list(constraint.forced(full[start : start + 2]))
            rest = text_of(tokenizer, full[start + 2 :])
            assert rest.startswith(text_of(tokenizer, forced)), (forced, rest)
            found += len(forced)
    assert found > 100
    assert not schema.constraint().forced([5, 6, 7]), "nothing after what breaks the schema"


async def test_forced_tokens_save_passes_and_forbidden_ones_cost_no_rows(
    grammars: GuidedGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = grammars.compile(json_form(NESTED))
    verified: list[list[int]] = []
    verify = TableTarget.verify

    def spy(self: TableTarget, batch: Any) -> Any:
        for work in batch:
            committed = [*self.held[work.slot], work.tree.tokens[0]][len(PROMPT) :]
            verified.extend([*committed, *path_to(work.tree, row)] for row in range(1, len(work.tree)))
        return verify(self, batch)

    monkeypatch.setattr(TableTarget, "verify", spy)
    plain = Speculation(policy="plain")
    guided = Speculation(policy="wanspec", k=2)
    requests = [
        GenerationRequest(PROMPT, 300, constraint=schema.constraint(), speculation=speculation)
        for speculation in (plain, guided)
    ]
    slow, slow_done, _ = await answer(requests[0], None, None)
    assert not verified, "plain decoding stays plain"
    fast, done, _ = await answer(requests[1], LoopWorker(model=Letters(0.9)), draft())
    assert fast == slow and done.usage.drafted["worker"] > 0
    assert done.usage.accepted["grammar"] > 20 and done.usage.rounds < 0.8 * slow_done.usage.rounds
    assert all(schema.constraint().allowed(tokens) == len(tokens) for tokens in verified)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_constrained_completion_is_valid_and_the_same_with_any_draft(
    grammars: GuidedGrammars, tokenizer: Any, temperature: float
) -> None:
    schema = grammars.compile(json_form(NESTED))
    for seed in range(2):
        sampling = Sampling(temperature=temperature, seed=seed, top_p=0.95)
        answers = []
        near = LoopWorker(model=Letters())
        far = LoopWorker(0.001, model=Letters(0.3))
        for worker, local in ((None, None), (near, None), (far, draft())):
            request = GenerationRequest(
                [*PROMPT, seed], 300, sampling, constraint=schema.constraint(), row_reader=Softmax()
            )
            tokens, done, readings = await answer(request, worker, local)
            assert done.finish == "stop" and len(readings) == len(tokens)
            answers.append((tokens, readings))
        assert answers[0] == answers[1] == answers[2]
        assert keeps_nested(json.loads(text_of(tokenizer, answers[0][0])))
        table = [Letters().row([*PROMPT, seed, *answers[0][0][:n]]) for n in range(3)]
        exact = [row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum()) for row in table]
        first = answers[0][1][:3]
        assert [logprob for logprob, _ in first] == pytest.approx(
            [row[token] for row, token in zip(exact, answers[0][0])]
        )
        assert [best for _, best in first] == [int(row.argmax()) for row in table]


def test_the_latest_schemas_are_kept_up_to_a_number_and_a_size(tokenizer: Any) -> None:
    grammars = GuidedGrammars(tokenizer, PADDED_VOCAB, frozenset({EOS_ID}))
    first = grammars.compile(json_form(LIST))
    for n in range(MAX_KEPT + 1):
        grammars.compile(json_form({"const": n}))
        assert len(grammars._judged) <= MAX_KEPT
        assert grammars.compile(json_form(LIST)) is first, "the one used last is dropped last"
    for n in range(MAX_KEPT_BYTES // 60_000 + 1):
        schema = grammars.compile(json_form({"const": n, "description": "x" * 60_000}))
        assert sum(size for size, _ in grammars._judged.values()) <= MAX_KEPT_BYTES
        assert grammars.compile(json_form({"const": n, "description": "x" * 60_000})) is schema
    assert grammars.compile(json_form(LIST)) is not first
    grammars.close()


@pytest.mark.claim("a-schema-is-compiled-again-for-another-key")
def test_one_keys_schemas_displace_none_of_another_key(tokenizer: Any) -> None:
    grammars = GuidedGrammars(tokenizer, PADDED_VOCAB, frozenset({EOS_ID}))
    mine = grammars.compile(json_form(LIST), b"mine")
    for n in range(MAX_KEPT):
        grammars.compile(json_form({"const": n}), b"theirs")
    for n in range(MAX_KEPT_BYTES // 60_000 + 1):
        grammars.compile(json_form({"const": n, "description": "x" * 60_000}), b"theirs")
    assert grammars.compile(json_form(LIST), b"mine") is mine
    grammars.close()


def test_no_tokenizer_is_built_while_schemas_are_compiled(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = GuidedGrammars(tokenizer, PADDED_VOCAB, frozenset({EOS_ID}))
    monkeypatch.delattr("llguidance.LLTokenizer")
    assert grammars.compile(json_form(NESTED)).constraint()(()).any()
    grammars.close()


def test_masks_beside_are_those_of_the_slow_twin(grammars: GuidedGrammars) -> None:
    schema = grammars.compile(json_form(NESTED))
    rng = random.Random(2)
    full = walk(schema.constraint(), rng)[:-1]
    beside = schema()
    twin = schema.constraint()
    while full:
        paths = [full[:n] for n in range(1, 5)] + [[*full[:2], 7]]
        beside.ahead(paths)
        for path in paths:
            beside._looked.result()
            assert beside.allowed(path) == twin.allowed(path) and list(beside.forced(path)) == list(twin.forced(path))
            if twin.allowed(path) == len(path):
                assert np.array_equal(beside(path), twin(path))
        taken = rng.randrange(1, 4)
        for one in (beside, twin):
            one.committed(full[:taken])
        full = full[taken:]
    with pytest.raises(ConstraintError):
        beside.committed([5, 6, 7])
        beside(())


def test_what_candidates_explore_makes_no_grammar_too_complex(grammars: GuidedGrammars, tokenizer: Any) -> None:
    """In the library a fault of one matcher is that of all its copies."""
    schema = grammars.compile(json_form({"type": "string", "pattern": "^(xA(a?){600}a{600}|x[a-z]*)$"}))
    begun, complex_, more = (tokenizer.encode(text, add_special_tokens=False) for text in ('"x', "A", "a"))
    explored = schema.constraint()
    beside = schema.constraint()
    twin = schema.constraint()
    for constraint in (explored, beside, twin):
        constraint.committed(begun)
    expected = twin(())
    with pytest.raises(ConstraintError, match="too complex"):
        for count in range(50):
            explored([*complex_, *more * count])
    assert np.array_equal(explored(()), expected) and np.array_equal(beside(()), expected)
    with pytest.raises(ConstraintError, match="too complex"):  # the completion itself cannot go on there
        explored.committed(complex_)
        for _ in range(50):
            explored(())
            explored.committed(more)


LIST = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": []},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "unheard-of"},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$ref": "https://example.org/schema.json"},
        {"not": {}},
        {"type": "string", "pattern": "("},
        {"type": "array", "uniqueItems": True},
        {"type": "string", "format": "unheard-of"},
        {"x-guidance": {"lenient": True}, "not": {}},
        {"type": "string", "description": "x" * 70_000},
        {"enum": [[]] * MAX_NODES},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_a_schema_that_cannot_be_kept_is_refused(grammars: GuidedGrammars, schema: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as caught:
        grammars.compile(json_form(schema))
    assert (caught.value.status, caught.value.param) == (400, "response_format")
    assert str(caught.value).startswith("Invalid 'response_format': ") and len(str(caught.value)) < 300


@pytest.mark.parametrize("schema", [LIST, {"type": "object"}, {"anyOf": [False, {"type": "null"}]}, {"const": 1}])
def test_a_schema_that_can_is_taken(grammars: GuidedGrammars, schema: dict[str, Any]) -> None:
    assert grammars.compile(json_form(schema)).constraint()([]).any()
