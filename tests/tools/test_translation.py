"""The measurements of a pair of two tokenizers, as far as they run without models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import translation


def test_prompts_are_of_both_kinds_in_turns() -> None:
    found = translation.texts(4)
    assert len(set(translation.texts(10))) == 10
    assert tuple(found[1::2]) == translation.CODE[:2] and not set(found[::2]) & set(translation.CODE)


def test_ratios_are_of_the_same_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"plain": (10.0, 20.0, 40.0), "adaptive": (5.0, 12.0, 60.0)}
    rows = [{"arm": arm, "prompt": at, "ms_per_token": ms} for arm, one in times.items() for at, ms in enumerate(one)]
    monkeypatch.setitem(translation.PARTS, "rig", lambda *_: iter(rows))
    monkeypatch.setattr(translation, "TARGETS", dict.fromkeys(("gemma", "smollm"), Path))
    assert translation.main(["rig", "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["medians"] == {"plain": 1.0, "adaptive": 0.6} and found["rows"] == rows
