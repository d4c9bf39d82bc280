"""What is trained: labels of heads, and their measures."""

from __future__ import annotations

import pytest
import torch

from cloud_gateway.parts.draft_heads.source import HeadLevel
from edgespec_lab.train import eagle
from edgespec_lab.train.medusa import IGNORED, fresh, labels
from edgespec_lab.train.text import Pairs

WIDTH = 4


def test_a_label_is_the_token_further_on_in_the_same_completion() -> None:
    heads = fresh(torch.zeros(9, WIDTH), torch.tensor([5, 6, 8]), 2, 2)
    found = labels(heads, torch.tensor([5, 6, 8, 7, -1, 6, 5]))
    assert found.tolist() == [
        [1, 2],
        [2, IGNORED],
        [IGNORED] * 2,
        [IGNORED] * 2,
        [IGNORED] * 2,
        [0, IGNORED],
        [IGNORED] * 2,
    ]


def test_an_eagle_head_is_measured_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that expects 1, 2, 3, ... after 0 is right until the text goes another way."""

    class Counting:
        next_place = 0

        def __init__(self, *_: object) -> None:
            self.number = 0

        def add(self, states: torch.Tensor) -> None: ...

        def read(self, tokens: list[int]) -> None:
            self.number = tokens[-1]

        def ahead(self) -> list[HeadLevel]:
            return [HeadLevel([self.number + step, 9], [0.5, 0.1], [step, -1]) for step in (1, 2, 3)]

    monkeypatch.setattr(eagle, "Line", Counting)
    tokens = torch.tensor([7, 0, 1, 2, 4, -1, 3, 3, -1])
    text = Pairs(torch.zeros(9, WIDTH), tokens, torch.tensor([False] + [True] * 5 + [False] + [True] * 2))
    assert eagle.measure(None, torch.zeros(1), text) == [
        {"step": 0, "places": 5, "right": 0.4},
        {"step": 1, "places": 2, "right": 0.5},
        {"step": 2, "places": 1, "right": 0.0},
    ]
