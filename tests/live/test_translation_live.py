"""A worker whose draft model has another tokenizer than the target: the real model behind permuted token numbers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from edgespec.core.drafting.borders import Borders
from edgespec.lab.rig.stage import Rig
from edgespec.llamacpp.tokenizer import GgufTokenizer
from edgespec.shared.models import model_dir
from tests.edgespec.core.drafting.test_borders import CASES, TEXTS
from tests.support.permuted import permute_tokens

pytestmark = pytest.mark.live
PROMPTS = ("Tell me in two sentences how a lighthouse works.", "Write a Python function that reverses a list.")


def asked(rig: Rig, **options: Any) -> tuple[list[str], float]:
    """The texts, and the worker's accepted tokens of each of the target's."""
    done = [rig.chat(prompt, 48, ignore_eos=True, **options) for prompt in PROMPTS]
    texts = [one["choices"][0]["message"]["content"] for one in done]
    accepted = sum(one["usage"]["edgespec"]["accepted"].get("worker", 0) for one in done)
    return texts, accepted / sum(one["usage"]["completion_tokens"] for one in done)


@pytest.mark.parametrize("file", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
@settings(max_examples=CASES)
@given(text=TEXTS)
def test_real_tokenizers_cut_segments_as_the_whole_text(file: str, text: str) -> None:
    if not (path := model_dir() / file).exists():
        pytest.skip(f"{path} is not there: dev/decisions/140-translation.md says how it is made")
    tokenizer, borders = cut_by(path)
    whole = text.encode(errors="ignore")
    assert [token for segment in borders.parted(whole) for token in tokenizer.encode(segment)] == tokenizer.encode(
        whole
    )


@cache
def cut_by(path: Path) -> tuple[GgufTokenizer, Borders]:
    tokenizer = GgufTokenizer(path)
    return tokenizer, Borders(tokenizer.pieces)


def test_another_tokenizers_draft_changes_no_text(tmp_path: Path, quantised_model: Path) -> None:
    permuted = tmp_path / "permuted.gguf"
    permute_tokens(quantised_model, permuted)
    shares = {}
    for name, draft, target in (("same", quantised_model, ""), ("other", permuted, str(quantised_model))):
        options = {"policy.name": "wanspec", "policy.sources": [], "policy.k": 4}
        rig = Rig(
            tmp_path / name, str(quantised_model), str(draft), None, dtype="float32", rtt_ms=5.0,
            gateway_options=options, worker_options={"draft.target": target},
        )  # fmt: skip
        with rig.linked():
            plain, nothing = asked(rig, offload="never")
            assert nothing == 0.0
            texts, shares[name] = asked(rig)
            assert texts == plain
    print(shares)
    assert shares["same"] > 0.4
    assert shares["other"] > 0.5 * shares["same"]
