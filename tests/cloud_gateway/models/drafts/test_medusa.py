"""Medusa heads beside a torch target: the states they see, their files, and the text, which they never change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.drafts.eagle import beside
from cloud_gateway.models.drafts.heads import Heads, MedusaHeads
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.torch import TorchTarget
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from cloud_gateway.process.targets import check_models
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import overridden
from tests.support.engines import complete, started
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import Architecture, load_tiny, make_tiny_target
from tools.train.loop import Trainer
from tools.train.medusa import fresh, losses
from tools.train.text import lesson, pairs, write

PROMPT = [1 + i % 50 for i in range(12)]
DIGEST = b"digest of the target"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def target(folder: Path) -> TorchTarget:
    return TorchTarget(load_tiny(folder), slots=2, threads=1)


@pytest.fixture(scope="module")
def heads(folder: Path) -> Heads:
    """Heads that know the completion of PROMPT by heart."""
    model = load_tiny(folder)
    text = pairs([lesson(model, [PROMPT], 40)]).completions()
    made = fresh(model.get_output_embeddings().weight.detach(), text.frequent(64), 2, 32)
    trainer = Trainer({"down": made.down, "up": made.up}, losses(made, text), 500, 4e-3)
    for _ in range(500):
        trainer.advance()
    return made


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2"])
def test_the_state_is_that_of_the_row_kept_last(architecture: Architecture, tmp_path: Path) -> None:
    path = make_tiny_target(tmp_path, architecture=architecture)
    model, target = load_tiny(path), TorchTarget(load_tiny(path), slots=2, threads=1)
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


def test_heads_expect_what_a_plain_product_gives(folder: Path, heads: Heads, target: TorchTarget) -> None:
    with torch.no_grad():
        state = torch.linspace(-1, 1, 32)
        for number, row in enumerate(heads(state)):
            inner = torch.nn.functional.silu(state @ heads.down[number])
            plain = heads.output @ (state + inner @ heads.up[number])
            torch.testing.assert_close(row, plain)
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
    target.close(slot)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_text_is_that_of_plain_decoding(heads: Heads, target: TorchTarget, temperature: float) -> None:
    engine = Engine(target, None, engine_settings(GatewaySettings()))
    engine.local.heads = {"medusa": MedusaHeads(heads, target)}
    with started(engine):
        sampling, asked = Sampling(temperature=temperature, seed=5), Speculation(sources=("medusa",))
        wanted = [
            GenerationRequest(PROMPT, 40, sampling, ignore_eos=True, speculation=one)
            for one in (Speculation(policy="plain"), asked)
        ]
        (plain, before), (found, done) = [await complete(engine, one) for one in wanted]
    assert found == plain and "medusa" not in before.usage.sources
    counts = done.usage.sources["medusa"]
    assert counts["proposed"] >= counts["verified"] >= counts["accepted"] == 40 - done.usage.rounds
    assert engine.stats.ended.sources["medusa"] == counts and done.usage.times.local_s > 0
    assert counts["seconds"] > 0
    if not temperature:
        assert counts["accepted"] > 0 and done.usage.accepted == {"medusa": counts["accepted"]}


async def test_without_heads_the_reason_is_in_the_usage(target: TorchTarget) -> None:
    engine = Engine(target, None, engine_settings(GatewaySettings()))
    with started(engine):
        wanted = GenerationRequest(PROMPT, 4, ignore_eos=True, speculation=Speculation(sources=("medusa",)))
        _, done = await complete(engine, wanted)
    assert "no medusa heads are loaded" in done.usage.sources["medusa"]["why"]


def test_a_file_states_whose_heads_it_holds(heads: Heads, target: TorchTarget, tmp_path: Path) -> None:
    path, other = tmp_path / "heads", tmp_path / "other"
    heads.save(path, DIGEST)
    found = beside(target, DIGEST, [path])
    assert list(found) == ["medusa"] and isinstance(found["medusa"], MedusaHeads)
    with pytest.raises(ModelError, match="other heads of its kind are named too"):
        beside(target, DIGEST, [path, path])
    for kind in ("gguf", "lookup"):  # a module and a source, but no heads
        save_file({"tokens": torch.zeros(1)}, other, {"kind": kind, "target": DIGEST.hex()})
        with pytest.raises(ModelError, match="it holds none of medusa"):
            beside(target, DIGEST, [other])


def test_files_that_do_not_fit_are_one_sentence(heads: Heads, target: TorchTarget, tmp_path: Path) -> None:
    path = tmp_path / "heads.safetensors"
    heads.save(path, DIGEST)
    again = Heads.load(path, DIGEST)
    assert all(torch.equal(getattr(again, name), getattr(heads, name)) for name in Heads.names())
    with pytest.raises(ModelError, match="for another target"):
        Heads.load(path, b"other")
    with pytest.raises(ModelError, match="cannot be read"):
        Heads.load(tmp_path / "none", DIGEST)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelError, match="cannot be read"):
        Heads.load(path, DIGEST)
    save_file({"tokens": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match="no medusa heads"):
        Heads.load(path, DIGEST)
    Heads(heads.down[:, :5], heads.up, heads.output, heads.tokens).save(path, DIGEST)
    with pytest.raises(ModelError, match="shapes that do not fit"):
        Heads.load(path, DIGEST)
    with pytest.raises(ModelError, match="do not fit this target"):
        MedusaHeads(Heads(heads.down, heads.up, heads.output, heads.tokens + 60), target)
    with pytest.raises(ModelError, match="cannot be written"):
        heads.save(tmp_path / "no folder" / "heads", DIGEST)
    values = {"target.model": str(make_tiny_gguf(tmp_path / "tiny.gguf")), "target.engine": "llamacpp"}
    settings = overridden(GatewaySettings(), {**values, "sources.heads": [str(path)], "local_draft.model": ""})
    with pytest.raises(ModelError, match="`sources.heads` needs the engine torch"):
        check_models(settings)
