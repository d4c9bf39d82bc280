"""The demo's table as a picture beside its JSON: time per token of each arm, with and without the neighbour."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.lab.demo.report import TITLES
from edgespec.lab.pictures import drawn

WIDTH = 0.38
"""Of a bar; two stand side by side."""


def plot(figures: Mapping[str, Any], out: Path) -> list[Path]:
    """Beside OUT, as of `drawn`."""
    return drawn(out, (9, 7), partial(_draw, figures))


def _draw(figures: Mapping[str, Any], figure: Any) -> None:
    arms = list(figures["ms_per_token"])
    panels = figure.subplots(2, 1)
    for axes, prefix, title in zip(panels, ("", "total_"), ("decoding", "whole completion"), strict=True):
        times, highs = figures[f"{prefix}ms_per_token"], figures[f"{prefix}ms_per_token_p90"]
        alone = figures[f"{prefix}ms_per_token_alone"]
        above = [max(highs[arm] - times[arm], 0) for arm in arms]
        axes.bar(range(len(arms)), [times[arm] for arm in arms], WIDTH, yerr=[[0] * len(arms), above], capsize=3)
        places = [place + WIDTH for place, arm in enumerate(arms) if arm in alone]
        axes.bar(places, [alone[arm] for arm in arms if arm in alone], WIDTH, color="0.75", label="without neighbour")
        axes.set_xticks(range(len(arms)), [TITLES[arm].format(best_k=figures["best_k"]) for arm in arms], fontsize=7)
        axes.set_ylabel("ms per token")
        axes.set_title(f"{title}: median, and 90th percentile over prompts", fontsize=9)
        axes.legend(fontsize=7)
    scene = f"target {figures['target']}, draft {figures['draft']}, {figures['rtt_ms']:g} ms, "
    figure.suptitle(f"{scene}{figures['prompts']} prompts")
