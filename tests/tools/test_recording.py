"""Recorded tokens: what ships is small and useful, what is read back is what was recorded."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from tools.sim import record
from tools.sim.recording import RANKS, SHIPPED, Recording, load, save

SHIPPED_DRAFTS = ["quantised", "without-10", "without-14", "without-8-16"]


def small(positions: int = 300, answers: int = 5) -> Recording:
    """A made-up recording: position i has token i."""
    rng = np.random.default_rng(1)
    tokens = np.arange(positions, dtype=np.uint32)
    proposals = np.stack([tokens + i for i in range(RANKS)], axis=1).astype(np.uint32)
    costs = np.sort(rng.exponential(1.0, (positions, RANKS)), axis=1).astype(np.float16)
    entropies = rng.exponential(1.0, positions).astype(np.float16)
    starts = np.arange(0, positions, positions // answers, dtype=np.uint32)[:answers]
    return Recording(tokens, entropies, starts, {"near": (proposals, costs, entropies)})


def test_the_shipped_recording_is_small_and_has_a_draft_like_the_papers() -> None:
    assert SHIPPED.stat().st_size <= 5e6
    recording = load(SHIPPED)
    assert sorted(recording.drafts) == SHIPPED_DRAFTS
    assert len(recording.targets) > 5000 and len(recording.starts) == 48
    matches = {name: recording.match(name, 1) for name in recording.drafts}
    assert min(abs(match - 0.8) for match in matches.values()) < 0.03, matches
    assert all(recording.match(name, 2) > matches[name] for name in matches)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    made = small()
    save(tmp_path / "made.npz", made)
    read = load(tmp_path / "made.npz")
    assert np.array_equal(read.targets, made.targets) and np.array_equal(read.starts, made.starts)
    for mine, theirs in zip(read.drafts["near"], made.drafts["near"], strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.live
def test_recording_keeps_what_target_and_drafts_say(quantised_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Count to five."}\n{"turns": ["Name a colour."]}\n')
    options = argparse.ArgumentParser()
    record.add_arguments(options)
    arguments = ["--out", str(out), "--prompts", str(prompts), "--max-tokens", "12", "--drafts", "14;quantised"]
    assert record.run(options.parse_args(arguments)) == 0
    recording = load(out)
    assert len(recording.starts) == 2 and len(recording.targets) <= 24
    assert recording.match("quantised", 2) > 0.8
    tokens, costs, entropies = recording.drafts["quantised"]
    assert tokens.shape == costs.shape == (len(recording.targets), RANKS) and entropies.shape == (len(tokens),)
    assert (np.diff(costs.astype(float), axis=1) >= 0).all(), "best first"
