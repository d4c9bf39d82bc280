"""A worker whose draft model has another tokenizer than the target: the real model behind permuted token numbers."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.parts.text_translation.borders import Borders
from edgespec.parts.text_translation.gguf import GgufTokenizer
from edgespec.parts.text_translation.tokenizer_file import packed
from edgespec.shared.models import model_dir
from edgespec.shared.vocabfiles import gguf_metadata
from edgespec_lab.demo.scene import PROMPTS as DEMO
from edgespec_lab.demo.scene import read_prompts
from edgespec_lab.rig.chat import greedy
from edgespec_lab.rig.stage import Rig
from tests.parts.text_translation.permuted import permute_tokens
from tests.parts.text_translation.test_borders import CASES, TEXTS
from tests.support.programs import require_model

pytestmark = pytest.mark.live
COUNT = int(os.environ.get("EDGESPEC_PROMPTS", "1"))
"""Prompts of the demo, each greedy and sampled."""
TOKENS = 48
SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
FETCH = {SMOLLM: "edgespec models fetch auto:quantised", GEMMA: "edgespec models fetch auto:gemma"}
"""The command that fetches each model."""


def asked(rig: Rig, **options: Any) -> tuple[list[Any], float]:
    """Texts and tokens of all completions, and the worker's accepted tokens of each of the target's."""
    done = [rig.complete(body) for body in bodies(**options)]
    choices = [one["choices"][0] for one in done]
    accepted = sum(one["usage"]["edgespec"]["accepted"].get("worker", 0) for one in done)
    found = [(one["message"]["content"], [token["bytes"] for token in one["logprobs"]["content"]]) for one in choices]
    return found, accepted / sum(one["usage"]["completion_tokens"] for one in done)


def bodies(**options: Any) -> list[dict[str, Any]]:
    whole = [greedy(prompt, TOKENS, {"ignore_eos": True, **options}) for prompt in read_prompts(DEMO, COUNT, 1)]
    return [{**body, "logprobs": True, **how} for body in whole for how in ({}, {"temperature": 0.8, "seed": 7})]


def killed_while_drafting(rig: Rig) -> tuple[str, list[list[int]]]:
    """The first completion, in which the worker is killed."""
    text = ""
    tokens = list[list[int]]()
    for chunk in rig.chunks(bodies()[0]):
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            tokens += [token["bytes"] for token in (choice.get("logprobs") or {}).get("content") or ()]
        if len(tokens) > TOKENS // 3 and rig.runs("worker"):
            rig.stop("worker", signal.SIGKILL)
    assert not rig.runs("worker")
    return text, tokens


@pytest.mark.parametrize("file", FETCH)
@settings(max_examples=CASES)
@given(text=TEXTS)
def test_real_tokenizers_cut_segments_as_the_whole_text(file: str, text: str) -> None:
    path = require_model(model_dir() / file, FETCH[file])
    tokenizer, borders = cut_by(path)
    whole = text.encode(errors="ignore")
    assert [token for segment in borders.parted(whole) for token in tokenizer.encode(segment)] == tokenizer.encode(
        whole
    )


@settings(max_examples=CASES)
@given(
    st.lists(
        st.sampled_from(["  ", "\n", "\t", " tree", "<table>", "(n-1)", "ooo", "ha"]) | st.text(max_size=8), max_size=8
    )
)
def test_short_texts_are_merged_as_llama_cpp_does(parts: list[str]) -> None:
    path = require_model(model_dir() / GEMMA, FETCH[GEMMA])
    text = "".join(parts).encode(errors="ignore")
    tokenizer = cut_by(path)[0]
    own = without_merges(path)
    assert tokenizer.encode(text) == own.encode(text)


@cache
def without_merges(path: Path) -> GgufTokenizer:
    tokenizer = GgufTokenizer(path)
    tokenizer._merges = None
    return tokenizer


@cache
def cut_by(path: Path) -> tuple[GgufTokenizer, Borders]:
    tokenizer = GgufTokenizer(path)
    return tokenizer, Borders(tokenizer.pieces)


def test_another_tokenizers_draft_changes_no_text(
    tmp_path: Path, quantised_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permuted = tmp_path / "permuted.gguf"
    permute_tokens(quantised_model, permuted)
    file = packed(gguf_metadata(quantised_model))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache_folder = tmp_path / "cache" / "edgespec"
    cache_folder.mkdir(parents=True)
    (cache_folder / "models").symlink_to(quantised_model.parent)  # the gateway's local draft is there
    folder = cache_folder / "tokenizers"
    shares = {}
    for name, draft in (("same", quantised_model), ("other", permuted)):
        options = {"policy.name": "wanspec", "policy.sources": [], "policy.k": 4}
        rig = Rig(
            tmp_path / name, str(quantised_model), str(draft), None, exact=True, rtt_ms=5.0,
            gateway_options=options,
        )  # fmt: skip
        with rig.linked():
            plain, nothing = asked(rig, policy="plain")
            assert nothing == 0.0
            done, shares[name] = asked(rig)
            assert done == plain
            if name == "other":
                (kept,) = [path for path in folder.iterdir() if path.suffix != ".json"]
                assert kept.read_bytes() == file
                assert killed_while_drafting(rig) == plain[0]
    print(len(plain), "completions", shares)
    assert shares["same"] > 0.4
    assert shares["other"] > 0.5 * shares["same"]
