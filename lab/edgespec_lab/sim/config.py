"""Configurations in the folder `configs`: one per paper, its source beside every number."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError
from edgespec_lab.sim.tokens import Iid
from edgespec_lab.sim.world import Curve, Steps

FOLDER = Path(__file__).with_name("configs")


def load(name: str) -> dict[str, Any]:
    """Reads NAME.toml of the folder `configs`. Raises ConfigError if it cannot be read."""
    path = FOLDER / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"The simulator's configuration {path} cannot be read: {error}") from error


def steps_of(config: Mapping[str, Any]) -> Steps:
    """[steps]: milliseconds by rows; the draft's curve serves gateway and worker. `catch_up_ms`: per token, where it is
    not what rows cost."""
    table = config["steps"]
    draft = curve(table["draft_ms"])
    catch_up = table.get("catch_up_ms")
    return Steps(curve(table["verify_ms"]), draft, draft, None if catch_up is None else catch_up / 1000)


def curve(points: Mapping[str, float]) -> Curve:
    """A table of rows -> milliseconds as TOML has it."""
    return Curve({int(rows): ms / 1000 for rows, ms in points.items()})


def tokens_of(config: Mapping[str, Any]) -> Iid:
    """[tokens]: the synthetic process."""
    return Iid(**config["tokens"])
