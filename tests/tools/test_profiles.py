"""Kinds of paths: no number without a source, and the manual shows both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgespec.lab.link_model import LinkModel
from tools.profiles import ASSUMED, PATHS, PROFILES, SOURCES

MANUAL = (Path(__file__).parents[2] / "docs" / "results" / "paths.md").read_text()
SHOWN = {"rtt_s": (1e3, "ms"), "jitter_s": (1e3, "ms"), "loss": (100, "%"), "bandwidth_bps": (1e-6, "Mbit/s")}
LIGHT_KM_PER_S = 203_000
"""In fibre."""
LONDON_TO_NEW_YORK_KM = 5_570


@pytest.mark.parametrize("path", PATHS)
def test_every_number_of_a_path_has_a_source_or_is_called_assumed(path: str) -> None:
    assert set(PATHS[path]) == set(SHOWN) <= set(LinkModel.__dataclass_fields__)
    assert {source for _, source in PATHS[path].values()} <= {*SOURCES, ASSUMED}


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_can_be_found_and_is_used(source: str) -> None:
    assert re.search(r"((19|20)\d\d|undated),.* https?://[a-z0-9.-]+/\S+: .*\d", SOURCES[source])
    assert source in {used for numbers in PATHS.values() for _, used in numbers.values()}


@pytest.mark.parametrize("path", PATHS)
def test_the_manual_shows_each_number_with_its_source(path: str) -> None:
    cells = (
        f"{number * SHOWN[field][0]:g} {SHOWN[field][1]}, {source}" for field, (number, source) in PATHS[path].items()
    )
    assert f"| {path} | {' | '.join(cells)} |" in MANUAL


@pytest.mark.parametrize("source", SOURCES)
def test_the_manual_has_each_source_in_full(source: str) -> None:
    assert f"- {source}: {SOURCES[source]}\n" in MANUAL


def test_a_profile_has_the_numbers_of_its_path() -> None:
    assert PROFILES["lte"] == LinkModel(rtt_s=0.053, jitter_s=0.01, loss=0.005, bandwidth_bps=13.6e6)


def test_no_path_is_faster_than_light_in_fibre() -> None:
    assert PROFILES["transatlantic"].rtt_s > 2 * LONDON_TO_NEW_YORK_KM / LIGHT_KM_PER_S
