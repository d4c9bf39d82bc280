"""An EAGLE head beside a torch target: what it reads and drafts, its files, and the text, which it never changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.core.sources.heads import Level
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.drafts.eagle import BEAM, CHUNK, DEPTH, EagleDrafts, EagleHead, Line
from cloud_gateway.models.drafts.heads import Heads
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.torch import TorchTarget
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from tests.support.engines import complete, started
from tests.support.tiny_target import load_tiny, make_tiny_target
from tools.train.eagle import fresh, losses, measure, weights
from tools.train.loop import Trainer
from tools.train.text import Pairs, lesson, pairs, write

PROMPT = [1 + i % 50 for i in range(12)]
OTHER = [50 - i % 40 for i in range(9)]
DIGEST = b"digest of the target"
COUNT = 40


def made(folder: Path, steps: int) -> tuple[EagleHead, torch.Tensor, Pairs]:
    """A head that was trained on completions of PROMPT and OTHER; the input embedding, and that text."""
    model = load_tiny(folder)
    text = pairs([lesson(model, [PROMPT, OTHER], COUNT)])
    torch.manual_seed(1)
    embedding = model.get_input_embeddings().weight.detach()
    head = fresh(embedding.shape[1], model.get_output_embeddings().weight.detach(), text, 64)
    trainer = Trainer(weights(head), losses(head, embedding, text), max(steps, 1), 4e-3)
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


def target_of(folder: Path, **options: int) -> TorchTarget:
    return TorchTarget(load_tiny(folder), **{"slots": 2, "threads": 1, **options})


def assert_same(found: Sequence[Level], expected: Sequence[Level]) -> None:
    assert len(found) > 1
    assert [level.tokens for level in found] == [level.tokens for level in expected]
    assert [level.below for level in found] == [level.below for level in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.chances == pytest.approx(other.chances, rel=1e-3, abs=1e-4)


def test_a_trained_head_proposes_what_the_target_writes(
    folder: Path, trained: tuple[EagleHead, torch.Tensor, Pairs]
) -> None:
    before, after = measure(*made(folder, 0)), measure(*trained)
    untrained, right = (float(str(one[0]["right"])) for one in (before, after))
    assert right > 0.8 > untrained + 0.5
    assert len(after) == DEPTH and int(str(after[-1]["places"])) > COUNT / 4, "whole drafts are right"


def test_a_line_drafts_what_one_pass_over_whole_paths_gives(head: EagleHead) -> None:
    """The slow twin: no KV cache and no tree, every path in a pass of its own behind all pairs."""
    torch.manual_seed(2)
    embedding, count = torch.randn(64, 32), CHUNK + 7
    tokens, shown = torch.randint(64, (count + 1,)).tolist(), torch.randn(count, 32)
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
        target: TorchTarget, drafts: EagleDrafts, prompt: list[int], scope: bytes, reads: bool = True
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


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_text_is_that_of_plain_decoding(folder: Path, head: EagleHead, temperature: float) -> None:
    target = target_of(folder, slots=3)
    engine = Engine(target, None, engine_settings(GatewaySettings()))
    engine.local.heads = {"eagle": EagleDrafts(head, target)}

    def wanted(prompt: list[int], speculation: Speculation) -> GenerationRequest:
        sampling = Sampling(temperature=temperature, seed=5)
        return GenerationRequest(prompt, COUNT, sampling, ignore_eos=True, speculation=speculation)

    plain, eagle = Speculation(policy="plain"), Speculation(sources=("eagle",))
    with started(engine):
        before = [await complete(engine, wanted(prompt, plain)) for prompt in (PROMPT, OTHER)]
        alone = [await complete(engine, wanted(prompt, eagle)) for prompt in (PROMPT, OTHER)]
        asked = [wanted(PROMPT, eagle), wanted(OTHER, eagle), wanted(PROMPT, plain)]
        together = await asyncio.gather(*(complete(engine, one) for one in asked))
    texts = [tokens for tokens, _ in before]
    assert [tokens for tokens, _ in alone] == texts
    assert [tokens for tokens, _ in together] == [*texts, texts[0]]
    assert all("eagle" not in done.usage.sources for _, done in (*before, together[2]))
    for _, done in (*alone, *together[:2]):
        counts = done.usage.sources["eagle"]
        assert counts["proposed"] >= counts["verified"] >= counts["accepted"] == COUNT - done.usage.rounds
        assert done.usage.times.local_s > 0 == done.usage.local_draft_passes
    accepted = sum(done.usage.sources["eagle"]["accepted"] for _, done in (*alone, *together[:2]))
    assert engine.stats.ended.sources["eagle"]["accepted"] == accepted and engine.stats.faults == 0
    if not temperature:
        assert accepted > 0


async def test_a_fault_of_the_head_ends_no_request(folder: Path, head: EagleHead) -> None:
    class Broken(EagleDrafts):
        def ask(self, slot: int, token: int) -> list[Level]:
            raise RuntimeError("broken")

    target = target_of(folder)
    engine = Engine(target, None, engine_settings(GatewaySettings()))
    engine.local.heads = {"eagle": Broken(head, target)}
    with started(engine):
        wanted = GenerationRequest(PROMPT, 8, ignore_eos=True, speculation=Speculation(sources=("eagle",)))
        tokens, done = await complete(engine, wanted)
    assert len(tokens) == 8 and done.error is None and engine.stats.faults == 1


def test_files_that_do_not_fit_are_one_sentence(folder: Path, head: EagleHead, tmp_path: Path) -> None:
    path, target = tmp_path / "eagle.safetensors", target_of(folder)
    head.save(path, DIGEST)
    again = EagleHead.load(path, DIGEST)
    assert all(torch.equal(getattr(again, name), getattr(head, name)) for name in EagleHead.names())
    parts = {name: getattr(head, name).detach() for name in EagleHead.names()}
    for name in EagleHead.names():
        EagleHead(**{**parts, name: parts[name][:-1].contiguous()}).save(path, DIGEST)
        with pytest.raises(ModelError, match="shapes that do not fit"):
            EagleHead.load(path, DIGEST)
        EagleHead(**{**parts, name: torch.tensor(1.0)}).save(path, DIGEST)
        with pytest.raises(ModelError, match="shapes that do not fit"):
            EagleHead.load(path, DIGEST)
    head.save(path, DIGEST)
    with pytest.raises(ModelError, match="for another target"):
        EagleHead.load(path, b"other")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelError, match="cannot be read"):
        EagleHead.load(path, DIGEST)
    Heads(torch.ones(1, 4, 1), torch.ones(1, 1, 4), torch.ones(2, 4), torch.arange(2)).save(path, DIGEST)
    with pytest.raises(ModelError, match="no eagle heads"):
        EagleHead.load(path, DIGEST)
    save_file(parts, path)
    with pytest.raises(ModelError, match="no eagle heads"):
        EagleHead.load(path, DIGEST)
    with pytest.raises(ModelError, match="do not fit this target"):
        EagleDrafts(EagleHead(**{**parts, "tokens": head.tokens + 60}), target)
    wide = make_tiny_target(tmp_path / "wide", hidden=64)
    with pytest.raises(ModelError, match="do not fit this target"):
        EagleDrafts(head, target_of(wide))
