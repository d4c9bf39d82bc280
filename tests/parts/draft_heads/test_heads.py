"""Medusa and EAGLE heads beside a torch target: what they read and draft, their files, and the text, which they never
change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.inside import StatesTarget
from cloud_gateway.models.target_model.load import folder_digest
from cloud_gateway.parts.draft_heads import KINDS, heads_need
from cloud_gateway.parts.draft_heads.beside import heads_beside
from cloud_gateway.parts.draft_heads.eagle import BEAM, CHUNK, DEPTH, EagleDrafts, EagleHead, Line
from cloud_gateway.parts.draft_heads.medusa import MedusaHeads, MedusaTensors
from cloud_gateway.parts.draft_heads.source import HeadLevel, Heads, source_maker
from cloud_gateway.process import targets
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings, load_models
from cloud_gateway.process.targets import check_models, engines_of, need_of
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from edgespec_lab.train import eagle, medusa
from edgespec_lab.train.loop import Trainer
from edgespec_lab.train.text import Pairs, lesson, pairs, write
from tests.support.engines import complete, started
from tests.support.tiny_target import Architecture, load_tiny, make_tiny_target
from tests.support.torch_targets import torch_settings, torch_target

PROMPT = [1 + i % 50 for i in range(12)]
OTHER = [50 - i % 40 for i in range(9)]
DIGEST = b"digest of the target"
COUNT = 40
kinds = pytest.mark.parametrize("kind", KINDS)


def made(folder: Path, steps: int) -> tuple[EagleHead, torch.Tensor, Pairs]:
    """A head that was trained on completions of PROMPT and OTHER; the input embedding, and that text."""
    model = load_tiny(folder)
    text = pairs([lesson(model, [PROMPT, OTHER], COUNT)])
    torch.manual_seed(1)
    embedding = model.get_input_embeddings().weight.detach()
    head = eagle.fresh(embedding.shape[1], model.get_output_embeddings().weight.detach(), text, 64)
    trainer = Trainer(eagle.weights(head), eagle.losses(head, embedding, text), max(steps, 1), 4e-3)
    for _ in range(steps):
        trainer.advance()
    return head, embedding, text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def trained(folder: Path) -> tuple[EagleHead, torch.Tensor, Pairs]:
    return made(folder, 300)


@pytest.fixture(scope="module")
def head(trained: tuple[EagleHead, torch.Tensor, Pairs]) -> EagleHead:
    return trained[0]


@pytest.fixture(scope="module")
def heads(folder: Path) -> MedusaTensors:
    """Heads that know the completion of PROMPT by heart."""
    model = load_tiny(folder)
    text = pairs([lesson(model, [PROMPT], 40)]).completions()
    made = medusa.fresh(model.get_output_embeddings().weight.detach(), text.frequent(64), 2, 32)
    trainer = Trainer({"down": made.down, "up": made.up}, medusa.losses(made, text), 500, 4e-3)
    for _ in range(500):
        trainer.advance()
    return made


@pytest.fixture
def saved(request: pytest.FixtureRequest, kind: str) -> MedusaTensors | EagleHead:
    """Those of the kind that a test is about."""
    found: MedusaTensors | EagleHead = request.getfixturevalue("heads" if kind == "medusa" else "head")
    return found


def target_of(folder: Path, **options: int) -> Any:
    return torch_target(load_tiny(folder), **{"slots": 2, "threads": 1, **options})


def drafts_of(saved: MedusaTensors | EagleHead, target: StatesTarget) -> MedusaHeads | EagleDrafts:
    return MedusaHeads(saved, target) if isinstance(saved, MedusaTensors) else EagleDrafts(saved, target)


def engine_with(target: StatesTarget, **heads: Heads) -> Engine:
    """An engine whose requests may ask these heads, by kind."""
    makers = {**MAKERS, **{kind: source_maker(kind, heads.get(kind)) for kind in KINDS}}
    return Engine(target, None, engine_settings(GatewaySettings(), makers=makers))


def assert_same(found: Sequence[HeadLevel], expected: Sequence[HeadLevel]) -> None:
    assert len(found) > 1
    assert [level.tokens for level in found] == [level.tokens for level in expected]
    assert [level.below for level in found] == [level.below for level in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.chances == pytest.approx(other.chances, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2"])
def test_the_state_is_that_of_the_row_kept_last(architecture: Architecture, tmp_path: Path) -> None:
    path = make_tiny_target(tmp_path, architecture=architecture)
    model = load_tiny(path)
    target = torch_target(load_tiny(path), slots=2, threads=1)
    slot, _ = target.open(PROMPT)
    target.prefill(slot, PROMPT[:-1])
    assert target.hidden(slot) is None, "a prompt is read without the output embedding"
    target.verify([Work(slot, FlatTree([PROMPT[-1], 7, 8, 9], [-1, 0, 0, 2], [0, 1, 1, 2]))])
    target.keep(slot, [0, 2, 3])
    with torch.inference_mode():
        body = model.base_model(torch.tensor([[*PROMPT, 8, 9]])).last_hidden_state[0, -1]
    found = target.hidden(slot)
    assert found is not None
    torch.testing.assert_close(found, body, atol=1e-4, rtol=1e-4)
    target.close(slot)
    assert target.hidden(slot) is None


def test_heads_expect_what_a_plain_product_gives(folder: Path, heads: MedusaTensors) -> None:
    with torch.no_grad():
        state = torch.linspace(-1, 1, 32)
        for number, row in enumerate(heads(state)):
            inner = torch.nn.functional.silu(state @ heads.down[number])
            plain = heads.output @ (state + inner @ heads.up[number])
            torch.testing.assert_close(row, plain)
    target = target_of(folder)
    asked = MedusaHeads(heads, target)
    slot, _ = target.open(PROMPT)
    target.prefill(slot, PROMPT[:-1])
    assert asked.ask(slot, PROMPT[-1]) == []
    (verified,) = target.verify([Work(slot, FlatTree(PROMPT[-1:], [-1], [0]))])
    target.keep(slot, [0])
    levels = asked.ask(slot, verified.argmax[0])
    ((written, _),) = write(load_tiny(folder), [PROMPT], 3, frozenset()).sequences()
    assert verified.argmax[0] == written[-3]
    assert [level.tokens[0] for level in levels] == written[-2:], "it was learnt by heart"
    assert all(list(level.chances) == sorted(level.chances, reverse=True) for level in levels)
    assert sum(levels[0].chances) <= 1.0001


def test_a_trained_head_proposes_what_the_target_writes(
    folder: Path, trained: tuple[EagleHead, torch.Tensor, Pairs]
) -> None:
    before = eagle.measure(*made(folder, 0))
    after = eagle.measure(*trained)
    untrained, right = (float(str(one[0]["right"])) for one in (before, after))
    assert right > 0.8 > untrained + 0.5
    assert len(after) == DEPTH and int(str(after[-1]["places"])) > COUNT / 4, "whole drafts are right"


def test_a_line_drafts_what_one_pass_over_whole_paths_gives(head: EagleHead) -> None:
    """The slow twin: no KV cache and no tree, every path in a pass of its own behind all pairs."""
    torch.manual_seed(2)
    embedding = torch.randn(64, 32)
    count = CHUNK + 7
    tokens = torch.randint(64, (count + 1,)).tolist()
    shown = torch.randn(count, 32)
    line = Line(head, embedding)
    for first, end in ((0, 3), (3, 3), (3, CHUNK + 5), (CHUNK + 5, count)):
        line.add(shown[first:end])
        line.read(tokens[line.next_place : end + 1])
    levels = line.ahead()
    assert_same(line.ahead(), levels)
    inner = [level for level in levels if any(place > 0 for place in level.below)]
    assert 1 < len(levels) <= 1 + BEAM * (DEPTH - 1) and inner

    def check(number: int, path: list[int], states: torch.Tensor) -> None:
        n = len(states)
        with torch.inference_mode():
            ids = torch.tensor([*tokens[1:], *path])
            after = head(embedding[ids], states, torch.arange(n), torch.ones(n, n, dtype=torch.bool).tril())[-1:]
            best = head.logits(after).softmax(-1)[0].topk(len(levels[number].tokens))
        assert head.tokens[best.indices].tolist() == levels[number].tokens
        assert best.values.tolist() == pytest.approx(levels[number].chances, rel=1e-3)
        for token, below in zip(levels[number].tokens, levels[number].below, strict=True):
            if below > 0:
                check(below, [*path, token], torch.cat([states, after]))

    check(0, [], shown)


def test_drafts_after_a_rejected_branch_are_those_of_a_fresh_head(folder: Path, head: EagleHead) -> None:
    target = target_of(folder)
    drafts = EagleDrafts(head, target)
    ((written, _),) = write(load_tiny(folder), [PROMPT], 6, frozenset()).sequences()
    a, b, c, last = written[12:16]
    slot, _ = target.open(PROMPT)
    target.prefill(slot, PROMPT[:-1])
    drafts.read(slot)
    for rows, tree in (
        ([0], FlatTree([PROMPT[-1], 7, 8, 9], [-1, 0, 0, 2], [0, 1, 1, 2])),
        ([0, 2, 4], FlatTree([a, 9, b, 3, c], [-1, 0, 0, 1, 2], [0, 1, 1, 2, 2])),
    ):
        drafts.ask(slot, tree.tokens[0])
        target.verify([Work(slot, tree)])
        target.keep(slot, rows)
    found = drafts.ask(slot, last)
    target.close(slot)
    other = target_of(folder)
    again = EagleDrafts(head, other)
    new, _ = other.open(PROMPT)
    other.prefill(new, [*PROMPT, a, b, c])
    assert_same(found, again.ask(new, last))


def test_drafts_after_a_reused_beginning_are_those_of_a_fresh_read(folder: Path, head: EagleHead) -> None:
    def opened(
        target: StatesTarget, drafts: EagleDrafts, prompt: list[int], scope: bytes, reads: bool = True
    ) -> tuple[int, int]:
        slot, reused = target.open(prompt, scope, room=64)
        if reads:
            assert drafts._lines[slot].next_place >= reused - 1, "nothing is read again"
        for first in range(reused, len(prompt) - 1, 5):  # chunks
            target.prefill(slot, prompt[first : min(first + 5, len(prompt) - 1)])
            if reads:
                drafts.read(slot)
        target.verify([Work(slot, FlatTree([prompt[-1]], [-1], [0]))])
        target.keep(slot, [0])
        return slot, reused

    long = [*PROMPT, *OTHER, 3, 9, 2]
    prompts = [long, [*long, 7, 8, 9], [*long[:20], 40, 41], [*long[:14], 42, 43, 44], [*long[:1], 45]]
    for reads in (True, False):  # a request that does not use the head is reused from as well
        target = target_of(folder, slots=3)
        drafts = EagleDrafts(head, target)
        first, _ = opened(target, drafts, prompts[0], b"key", reads)
        busy, copied = opened(target, drafts, prompts[1], b"key", reads)
        target.close(busy)
        again, continued = opened(target, drafts, prompts[2], b"key", reads)
        found = [(prompts[2], drafts.ask(again, 5))]
        for slot in (first, again):
            target.close(slot)
        reused = [copied, continued]
        for prompt in prompts[3:]:
            slot, count = opened(target, drafts, prompt, b"key", reads)
            found.append((prompt, drafts.ask(slot, 5)))
            reused.append(count)
            target.close(slot)
        assert reused == [len(long), 20, 14, 1]
        for prompt, levels in found:
            fresh_target = target_of(folder)
            fresh_drafts = EagleDrafts(head, fresh_target)
            slot, none = opened(fresh_target, fresh_drafts, prompt, b"")
            assert not none
            assert_same(levels, fresh_drafts.ask(slot, 5))


def test_what_is_dropped_for_others_leaves_nothing(folder: Path, head: EagleHead) -> None:
    target = target_of(folder, slots=2, kv_tokens=600)
    drafts = EagleDrafts(head, target)
    for scope in (b"one", b"other"):
        slot, _ = target.open(PROMPT, scope, room=300)
        target.prefill(slot, PROMPT[:-1])
        target.close(slot)
    assert len(drafts._lines) == 2
    target.open(OTHER, b"third", room=600)
    assert len(drafts._lines) == 1


@kinds
@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_text_is_that_of_plain_decoding(
    folder: Path, saved: MedusaTensors | EagleHead, kind: str, temperature: float
) -> None:
    target = target_of(folder, slots=3)
    engine = engine_with(target, **{kind: drafts_of(saved, target)})

    def wanted(prompt: list[int], speculation: Speculation) -> GenerationRequest:
        sampling = Sampling(temperature=temperature, seed=5)
        return GenerationRequest(prompt, COUNT, sampling, ignore_eos=True, speculation=speculation)

    plain = Speculation(policy="plain")
    helped = Speculation(sources=(kind,))
    with started(engine):
        before = [await complete(engine, wanted(prompt, plain)) for prompt in (PROMPT, OTHER)]
        alone = [await complete(engine, wanted(prompt, helped)) for prompt in (PROMPT, OTHER)]
        asked = [wanted(PROMPT, helped), wanted(OTHER, helped), wanted(PROMPT, plain)]
        together = await asyncio.gather(*(complete(engine, one) for one in asked))
    texts = [tokens for tokens, _ in before]
    assert [tokens for tokens, _ in alone] == texts
    assert [tokens for tokens, _ in together] == [*texts, texts[0]]
    assert all(kind not in done.usage.sources for _, done in (*before, together[2]))
    for _, done in (*alone, *together[:2]):
        counts = done.usage.sources[kind]
        assert counts["proposed"] >= counts["verified"] >= counts["accepted"] == COUNT - done.usage.rounds
        assert done.usage.times.local_s > 0 == done.usage.local_draft_passes
    accepted = sum(done.usage.sources[kind]["accepted"] for _, done in (*alone, *together[:2]))
    assert engine.stats.ended.sources[kind]["accepted"] == accepted and engine.stats.faults == 0
    if not temperature:
        assert accepted > 0


async def test_without_heads_the_reason_is_in_the_usage(folder: Path) -> None:
    engine = engine_with(target_of(folder))
    with started(engine):
        wanted = GenerationRequest(PROMPT, 4, ignore_eos=True, speculation=Speculation(sources=("medusa",)))
        _, done = await complete(engine, wanted)
    assert "no medusa heads are loaded" in done.usage.sources["medusa"]["why"]


async def test_a_fault_of_the_head_ends_no_request(folder: Path, head: EagleHead) -> None:
    class Broken(EagleDrafts):
        def ask(self, slot: int, token: int) -> list[HeadLevel]:
            raise RuntimeError("broken")

    target = target_of(folder)
    engine = engine_with(target, eagle=Broken(head, target))
    with started(engine):
        wanted = GenerationRequest(PROMPT, 8, ignore_eos=True, speculation=Speculation(sources=("eagle",)))
        tokens, done = await complete(engine, wanted)
    assert len(tokens) == 8 and done.error is None and engine.stats.faults == 1


def test_a_file_states_whose_heads_it_holds(heads: MedusaTensors, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads"
    other = tmp_path / "other"
    target = target_of(folder)
    heads.save(path, DIGEST)
    found = heads_beside(target, DIGEST, [path])
    assert list(found) == ["medusa"] and isinstance(found["medusa"], MedusaHeads)
    with pytest.raises(ModelError, match="other heads of its kind are named too"):
        heads_beside(target, DIGEST, [path, path])
    for kind in ("gguf", "lookup"):  # a module and a source, but no heads
        save_file({"tokens": torch.zeros(1)}, other, {"kind": kind, "target": DIGEST.hex()})
        with pytest.raises(ModelError, match="it holds none of medusa"):
            heads_beside(target, DIGEST, [other])


@kinds
def test_files_that_do_not_fit_are_one_sentence(
    folder: Path, saved: MedusaTensors | EagleHead, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "heads"
    load = type(saved).load
    parts = {name: getattr(saved, name).detach() for name in saved.names()}

    def refused(sentence: str, digest: bytes = DIGEST, file: Path = path) -> None:
        with pytest.raises(ModelError, match=sentence):
            load(file, digest)

    saved.save(path, DIGEST)
    again = load(path, DIGEST)
    assert all(torch.equal(getattr(again, name), part) for name, part in parts.items())
    refused("for another target", b"other")
    refused("cannot be read", file=tmp_path / "none")
    path.write_bytes(path.read_bytes()[:200])
    refused("cannot be read")
    for metadata in (None, {"kind": "lookup", "target": DIGEST.hex()}):
        save_file(parts, path, metadata)
        refused(f"no {kind} heads")
    for name, part in parts.items():
        for wrong in (part[:-1].contiguous(), torch.tensor(1.0)):
            type(saved)(**{**parts, name: wrong}).save(path, DIGEST)
            refused("shapes that do not fit")
    with pytest.raises(ModelError, match="do not fit this target"):
        drafts_of(type(saved)(**{**parts, "tokens": saved.tokens + 60}), target_of(folder))
    with pytest.raises(ModelError, match="cannot be written"):
        saved.save(tmp_path / "no folder" / "heads", DIGEST)


def test_heads_need_the_target_that_they_were_made_for(head: EagleHead, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="do not fit this target"):
        EagleDrafts(head, target_of(make_tiny_target(tmp_path / "wide", hidden=64)))


async def test_heads_are_loaded_beside_the_target_and_asked(folder: Path, heads: MedusaTensors, tmp_path: Path) -> None:
    path = tmp_path / "heads"
    heads.save(path, folder_digest(folder))
    named = {"target.model": str(folder), "local_draft.model": "", "sources.heads": [str(path)]}
    settings = torch_settings({**named, "policy.sources": KINDS})
    models = load_models(settings)
    engine = Engine(models.target, None, engine_settings(settings, makers={**MAKERS, **models.makers}))
    with started(engine):
        _, done = await complete(engine, GenerationRequest(PROMPT, COUNT, ignore_eos=True))
    assert done.usage.sources["medusa"]["accepted"] > 0
    assert "no eagle heads are loaded" in done.usage.sources["eagle"]["why"]


def test_heads_take_memory_beside_the_target(
    folder: Path, head: EagleHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "eagle"
    head.save(path, DIGEST)
    named = {"target.model": str(folder), "local_draft.model": "", "target.context": 256, "target.device": "cpu"}
    settings = torch_settings({**named, "sources.heads": [str(path)]})
    torch = engines_of(settings.parts)["torch"]
    need = need_of(settings, torch, folder)
    assert need == torch.need(folder, settings) + heads_need(path)
    monkeypatch.setattr(targets, "available_memory", lambda: need.weights + 1000 * need.token)
    assert check_models(settings).kv_tokens == 900
    path.write_bytes(b"cut")
    with pytest.raises(ModelError, match="eagle is corrupt"):
        check_models(settings)
