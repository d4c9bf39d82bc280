"""The torch target on tiny random models: for any tree, the logits equal those of a causal pass over each path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloud_gateway.core.verify.accept import FlatTree, walk
from cloud_gateway.models.target_model import Work, slots
from cloud_gateway.parts.torch_engine import target as engine
from cloud_gateway.parts.torch_engine.forward import MIN_ENTRIES, HfForward, Part
from cloud_gateway.parts.torch_engine.target import TorchTarget
from edgespec.core.errors import ModelError
from tests.support.tiny_target import Architecture, load_tiny, make_tiny_target, plain_logits
from tests.support.tiny_tokenizer import EOS_ID
from tests.support.trees import SCOPE, begin, chain, flat_trees, opened, path_to

VOCAB = 64
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24)
slow = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])

Folders = Callable[[Architecture], Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    made: dict[Architecture, Path] = {}

    def folder(architecture: Architecture) -> Path:
        if architecture not in made:
            path = tmp_path_factory.mktemp(architecture)
            made[architecture] = make_tiny_target(path, vocab=VOCAB, architecture=architecture)
        return made[architecture]

    return folder


@pytest.fixture(scope="module", params=["llama", "llama-tied", "qwen2", "gpt2", "gemma3"])
def pair(request: pytest.FixtureRequest, folders: Folders) -> tuple[TorchTarget, Any]:
    """A target, and its model in transformers' own hands."""
    path = folders(request.param)
    return TorchTarget(load_tiny(path), slots=3, threads=1), load_tiny(path)


@pytest.fixture(scope="module")
def llama(folders: Folders) -> tuple[TorchTarget, Any]:
    path = folders("llama")
    return TorchTarget(load_tiny(path), slots=3, threads=1), load_tiny(path)


def greedy(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    """Plain decoding, the slowest way: the whole text again for each token."""
    answer: list[int] = []
    for _ in range(count):
        answer.append(int(plain_logits(model, [*tokens, *answer])[-1].argmax()))
    return answer


# --- one pass --------------------------------------------------------------------------------------------------------


@slow
@given(prompt=prompts, tree=flat_trees(VOCAB))
def test_every_row_of_any_tree_has_the_logits_of_its_path_alone(
    pair: tuple[TorchTarget, Any], prompt: list[int], tree: FlatTree
) -> None:
    target, model = pair
    with opened(target, [*prompt, tree.tokens[0]]) as slot:
        (found,) = target.verify([Work(slot, tree)])
    for row in range(len(tree)):
        path = [tree.tokens[i] for i in path_to(tree, row)]
        expected = plain_logits(model, [*prompt, *path])[-1].numpy()
        np.testing.assert_allclose(found.logits(row), expected, atol=1e-4, rtol=0)
        assert found.argmax[row] == int(expected.argmax())


@settings(slow, max_examples=6)
@given(prompt=prompts, trees=st.lists(flat_trees(VOCAB, 8), min_size=1, max_size=5), hits=st.integers(0, 2**20))
def test_greedy_answers_are_those_of_plain_decoding_whatever_the_trees(
    pair: tuple[TorchTarget, Any], prompt: list[int], trees: list[FlatTree], hits: int
) -> None:
    target, model = pair
    plain = greedy(model, prompt, 30)
    answer: list[int] = []
    with opened(target, prompt) as slot:
        for tree in trees:
            # Some rows are set to the target's own choices, so that paths of all lengths are accepted.
            row_0 = [*prompt, *answer][-1]
            right = plain[len(answer) :]
            tokens = [right[tree.depths[i] - 1] if hits >> i & 1 else tree.tokens[i] for i in range(1, len(tree))]
            offered = FlatTree([row_0, *tokens], tree.parents, tree.depths)
            (found,) = target.verify([Work(slot, offered)])
            taken = walk(offered, lambda row, found=found: found.argmax[row])
            target.keep(slot, taken.rows)
            answer += taken.tokens
    assert answer == plain[: len(answer)]
    assert len(answer) >= len(trees)


def host_argmax(rows: torch.Tensor) -> list[int]:
    return slots.argmax_on_host(rows.float().numpy())


def slow_host_entropy(row: torch.Tensor) -> float:
    return slots.entropy_on_host(row.float().numpy())


def host_entropy(row: torch.Tensor) -> float:
    return slots.HostEntropy()(row.float().numpy(), int(row.argmax()))


HOST = (host_argmax, host_entropy)
SLOW_HOST = (host_argmax, slow_host_entropy)
DEVICE = (engine.argmax_on_device, engine.entropy_on_device)


@pytest.mark.parametrize(("argmax", "entropy"), [HOST, SLOW_HOST, DEVICE], ids=["host", "slow host", "device"])
def test_argmax_is_the_first_of_equals_and_entropy_the_distributions(argmax: Any, entropy: Any) -> None:
    rows = torch.tensor(
        [[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0], [90.0, -90.0, 0.0, 0.0], [-float("inf"), 1.0, 0.0, 1.0]]
    )
    p = rows.double().softmax(-1)
    assert argmax(rows) == [1, 0, 0, 1]
    expected = (-(p * p.clamp_min(1e-300).log()).sum(-1)).tolist()
    assert [entropy(row) for row in rows] == pytest.approx(expected, abs=1e-6)


@given(seed=st.integers(0, 2**31), scale=st.floats(0, 30), rows=st.integers(1, 5))
def test_host_and_device_summarise_alike(seed: int, scale: float, rows: int) -> None:
    logits = (torch.randn(rows, 200, generator=torch.Generator().manual_seed(seed)) * scale).bfloat16()
    assert HOST[0](logits) == DEVICE[0](logits)
    assert [HOST[1](row) for row in logits] == pytest.approx([DEVICE[1](row) for row in logits], rel=1e-4, abs=1e-5)


def test_a_batch_is_one_pass_over_all_rows(llama: tuple[TorchTarget, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    target, _ = llama
    with opened(target, [3, 4, 5]) as one, opened(target, [6, 7, 8]) as other:
        works = [Work(one, chain(5, 6, 7)), Work(other, chain(8))]
        target.verify(works)
        assert [p.rows for p in target.passes] == [4] and target.passes[0].seconds > 0
        monkeypatch.setattr(engine, "MAX_PASS_ROWS", 3)
        target.verify(works)
        assert [p.rows for p in target.passes] == [3, 1]


def test_transformers_own_code_takes_a_pass_for_each_request(folders: Folders) -> None:
    target = TorchTarget(load_tiny(folders("gpt2")), slots=2, threads=1)
    with opened(target, [3, 4, 5]) as one, opened(target, [6, 7, 8]) as other:
        target.verify([Work(one, chain(5, 6, 7)), Work(other, chain(8))])
    assert [p.rows for p in target.passes] == [3, 1]


def test_full_rows_are_the_logits_that_argmax_was_taken_of(llama: tuple[TorchTarget, Any]) -> None:
    target, _ = llama
    with opened(target, [3, 4, 5]) as slot:
        (found,) = target.verify([Work(slot, chain(5, 6, 7))])
    assert found.argmax == [int(found.logits(row).argmax()) for row in range(3)]
    assert found.logits(2).dtype == np.float32
    assert found.logits(2).max() > 0.1  # not what is left of the computation of the entropies


def test_a_target_that_is_not_asked_to_be_exact_does_not_claim_it(folders: Folders) -> None:
    assert not TorchTarget(load_tiny(folders("llama")), threads=1, exact=False).exact
    assert not TorchTarget(load_tiny(folders("gpt2")), threads=1).exact


# --- slots -----------------------------------------------------------------------------------------------------------


@slow
@given(first=prompts, second=prompts, shared=prompts)
def test_a_reused_beginning_answers_like_a_fresh_prefill(
    llama: tuple[TorchTarget, Any], first: list[int], second: list[int], shared: list[int]
) -> None:
    target, model = llama
    target.close(begin(target, shared + first))
    with opened(target, shared + second) as slot:
        (found,) = target.verify([Work(slot, chain(second[-1]))])
    np.testing.assert_allclose(found.logits(0), plain_logits(model, shared + second)[-1], atol=1e-4)


def test_a_beginning_is_taken_over_from_a_slot_in_use(llama: tuple[TorchTarget, Any]) -> None:
    target, model = llama
    text = list(range(10, 40))
    busy = begin(target, text)
    slot, reused = target.open([*text[:20], 1, 2, 3], SCOPE)
    assert (slot != busy, reused) == (True, 20)
    target.prefill(slot, [1, 2])
    for work, tokens in ((Work(slot, chain(3)), [*text[:20], 1, 2, 3]), (Work(busy, chain(39)), text)):
        (found,) = target.verify([work])
        np.testing.assert_allclose(found.logits(0), plain_logits(model, tokens)[-1], atol=1e-4)
        target.close(work.slot)


def test_an_answers_own_tokens_serve_the_next_turn(llama: tuple[TorchTarget, Any]) -> None:
    target, model = llama
    prompt = [40, 41, 42, 43]
    slot = begin(target, prompt)
    plain = greedy(model, prompt, 3)
    tree = chain(43, *plain[:2], 7)
    target.verify([Work(slot, tree)])
    target.keep(slot, [0, 1, 2])
    target.close(slot)
    assert target.open([*prompt, *plain, 1], SCOPE)[1] == len(prompt) + 2
    target.close(slot)


def test_a_slot_grows_beyond_its_first_buffer(llama: tuple[TorchTarget, Any]) -> None:
    target, model = llama
    text = [3 + i % 50 for i in range(MIN_ENTRIES + 40)]
    with opened(target, text, chunk=100) as slot:
        (found,) = target.verify([Work(slot, chain(text[-1], 9))])
    np.testing.assert_allclose(found.logits(1), plain_logits(model, [*text, 9])[-1], atol=1e-4)


# --- what the target says of itself, and what it refuses -------------------------------------------------------------


def test_context_vocabulary_and_eos_come_from_the_model(folders: Folders) -> None:
    target = TorchTarget(load_tiny(folders("llama")), context=10_000, threads=1)
    assert (target.context, target.vocab_size, target.eos) == (512, VOCAB, {EOS_ID})
    assert TorchTarget(load_tiny(folders("llama")), context=100, threads=1).context == 100


@pytest.mark.parametrize("architecture", ["bloom", "mamba"])
def test_a_model_that_cannot_verify_trees_is_refused_in_one_sentence(
    folders: Folders, architecture: Architecture
) -> None:
    with pytest.raises(ModelError, match="cannot verify trees"):
        TorchTarget(load_tiny(folders(architecture)), threads=1)


class DeafToMasks(HfForward):
    """A model that attends to every row, as one would that ignored the mask."""

    def __call__(self, parts: Sequence[Part], *, head: bool = True) -> list[Tensor]:
        return super().__call__([replace(part, tail=torch.ones_like(part.tail)) for part in parts], head=head)


class DeafToPositions(HfForward):
    """A model that counts positions by row."""

    def __call__(self, parts: Sequence[Part], *, head: bool = True) -> list[Tensor]:
        counted = [replace(part, positions=torch.arange(len(part.ids)) + part.kv.length) for part in parts]
        return super().__call__(counted, head=head)


@pytest.mark.parametrize("broken", [DeafToMasks, DeafToPositions])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_self_test_refuses_a_model_that_ignores_trees(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, broken: type[HfForward], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(engine, "_forward", lambda model, *_: broken(model))
    with pytest.raises(ModelError, match="differ from those of its paths"):
        TorchTarget(load_tiny(folders("llama"), dtype), threads=1)
