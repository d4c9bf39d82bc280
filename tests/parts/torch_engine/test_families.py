"""Every family of the table: tree verification gives transformers' own logits step by step, beyond its window too."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.parts.torch_engine import headers
from cloud_gateway.parts.torch_engine.headers import FAMILIES, check_torch
from cloud_gateway.parts.torch_engine.load import load
from cloud_gateway.parts.torch_engine.target import MAX_DEPTH, TorchTarget
from edgespec.core.errors import ModelError
from edgespec.shared.vocabfiles import gguf_metadata, gguf_tensors
from tests.support.families import ARCHITECTURES, MADE, VOCAB, WINDOW, make, write_gguf
from tests.support.tiny_target import plain_logits

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"
PROMPT = [(7 * i + i * i) % VOCAB for i in range(5 * WINDOW)]
CHUNK = 7
TREE = FlatTree(
    [1, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23],
    [-1, 0, 0, 1, 1, 3, 5, 6, 7, 8, 9, 10, 11, 12],
    [0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
)
"""A bush, and a chain that is longer than the window."""


def path_to(row: int) -> list[int]:
    path = [row]
    while TREE.parents[path[-1]] >= 0:
        path.append(TREE.parents[path[-1]])
    return path[::-1]


def step_by_step(model: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The logits after each token, one token a pass, with the cache that the model makes itself."""
    past = None
    rows = []
    with torch.inference_mode():
        for token in tokens:
            output = model(input_ids=torch.tensor([[token]]), past_key_values=past, use_cache=True)
            past = output.past_key_values
            rows.append(output.logits[0, -1].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("family", MADE)
def test_trees_have_the_logits_of_transformers_own_steps(family: str) -> None:
    assert family in FAMILIES
    model = make(family)
    longest = path_to(len(TREE) - 1)
    steps = step_by_step(model, [*PROMPT, *(TREE.tokens[row] for row in longest)])[len(PROMPT) :]
    target = TorchTarget(model, slots=1, context=200, threads=1, exact=False, kernels="plain")
    slot, _ = target.open([*PROMPT, TREE.tokens[0]])
    for at in range(0, len(PROMPT), CHUNK):
        target.prefill(slot, PROMPT[at : at + CHUNK])
    (found,) = target.verify([Work(slot, TREE)])
    for row, logits in zip(longest, steps, strict=True):
        np.testing.assert_allclose(found.logits(row), logits, atol=3e-4, rtol=0)
    kept = [0, 1, 3]
    target.keep(slot, kept)  # behind a rejected sibling
    (found,) = target.verify([Work(slot, TREE)])
    base = [*PROMPT, *(TREE.tokens[row] for row in kept)]
    for leaf in (2, 4, len(TREE) - 1):
        whole = plain_logits(model, [*base, *(TREE.tokens[row] for row in path_to(leaf))]).numpy()
        for depth, row in enumerate(path_to(leaf)):
            np.testing.assert_allclose(found.logits(row), whole[len(base) + depth], atol=3e-4, rtol=0)


def test_angles_that_depend_on_the_length_of_a_pass_limit_the_context() -> None:
    """Phi-3's `longrope` changes them for all rows once one row is beyond 256."""
    assert TorchTarget(make("phi3"), slots=1, context=1000, threads=1).context == 256 - MAX_DEPTH


# --- the same model as folder and as GGUF file -----------------------------------------------------------------------


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_gguf_file_gives_the_logits_of_its_folder_in_both_engines(family: str, tmp_path: Path) -> None:
    model = make(family, plain=True)
    expected = plain_logits(model, PROMPT).numpy()
    file = write_gguf(tmp_path / "model.gguf", model)
    assert gguf_metadata(file)["general.architecture"] == FAMILIES[family].gguf
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        if FAMILIES[family].torch_reads_gguf:
            check_torch(file)
            loaded = load(file, "float32", "cpu").model
            np.testing.assert_allclose(plain_logits(loaded, PROMPT).numpy(), expected, atol=1e-5)
        else:
            with pytest.raises(ModelError, match='set `target.engine` to "llamacpp"'):
                check_torch(file)
    target = LlamaCppTarget(file, eos=frozenset(), slots=1, context=200, tree_nodes=16, threads=1)
    slot, _ = target.open(PROMPT)
    rows = 14
    target.prefill(slot, PROMPT[:-rows])
    chain = FlatTree(PROMPT[-rows:], list(range(-1, rows - 1)), list(range(rows)))
    (found,) = target.verify([Work(slot, chain)])
    got = np.stack([found.logits(row) for row in range(rows)])
    target.shutdown()
    np.testing.assert_allclose(got, expected[-rows:], atol=0.1)  # keys and values are kept in 16 bits


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{"model_type": "mamba"}, {"model_type": "t5"}, {"model_type": "nonesuch"}, {}])
def test_a_folder_of_another_family_is_refused(config: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="which the engine torch is not verified for"):
        check_torch(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("qwen3.rope.scaling.type", "yarn", "scaled rotary embedding"),
        ("qwen3.attention.key_length", 8, "heads have 8 dimensions and the conversion assumes 128"),
    ],
)
def test_what_a_conversion_would_lose_is_refused(
    key: str, value: object, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "model.gguf", make("qwen3", plain=True))
    check_torch(file)
    metadata = gguf_metadata(file) | {key: value}
    monkeypatch.setattr(headers, "gguf_metadata", lambda _: metadata)
    with pytest.raises(ModelError, match=sentence):
        check_torch(file)


def test_llama_3_1_in_a_gguf_file_is_left_to_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "model.gguf", make("llama"))
    tensors = gguf_tensors(file)
    assert ("token_embd.weight", 32 * VOCAB) in tensors
    monkeypatch.setattr(headers, "gguf_tensors", lambda _: [*tensors, ("rope_freqs.weight", 4)])
    with pytest.raises(ModelError, match=r"scaled rotary embedding .*: set `target.engine` to \"llamacpp\""):
        check_torch(file)


def test_the_table_in_the_documents_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| (?:`(\w+)`|–) \| (yes|–) \|", DOCUMENT.read_text(), re.MULTILINE)
    stated = {kind: (name or None, reads == "yes") for kind, name, reads in rows}
    assert stated == {kind: (family.gguf, family.torch_reads_gguf) for kind, family in FAMILIES.items()}
    assert set(MADE) == set(FAMILIES)
