"""Records completions of known prompts on real models: gateways that differ in `api.stream`, in turns."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgespec.lab.demo.scene import two_cores
from edgespec.lab.rig import Rig
from edgespec.shared import models
from tools.sidechannel.judge import Row
from tools.sidechannel.tap import observe, relay

MODES = ("as-made", "even")
ARMS: Mapping[str, Mapping[str, Any]] = {
    "off": {"offload": "never", "policy": "plain"},
    "local": {"offload": "never", "policy": "colocated"},
    "worker": {"offload": "auto", "policy": "wanspec"},
}
"""Who drafts, as the request's extension. These policies always draft; `adaptive` would not for so small a target."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one temperature."""

    arm: str
    temperature: float


@contextlib.contextmanager
def scene(folder: Path, modes: Sequence[str]) -> Iterator[dict[str, tuple[int, Rig]]]:
    """A linked rig for each mode, behind a TLS relay, whose port stands before it. They share two cores."""
    target, draft = str(models.quantised()), str(models.dropped())  # a draft without errors would leave no pattern
    with contextlib.ExitStack() as closing:
        made = {}
        for mode in modes:
            rig = Rig(
                folder / mode, target, draft, draft, rtt_ms=20.0, engine="llamacpp", cores=two_cores(),
                gateway_options={
                    "target.threads": 1, "local_draft.threads": 1, "api.prefix_cache": False,
                    **({} if mode == "as-made" else {"api.stream": mode}),
                },
                worker_options={"draft.threads": 1},
            )  # fmt: skip
            closing.enter_context(rig.linked())
            made[mode] = closing.enter_context(relay(rig.ready["api"]["port"], rig.folder)), rig
        yield made


def record(
    scenes: Mapping[str, tuple[int, Rig]],
    cells: Sequence[Cell],
    prompts: Sequence[str],
    seeds: Sequence[int],
    max_tokens: int,
) -> Iterator[Row]:
    """A row of each completion: its cell, `mode`, `prompt` (number), `seed`, and the fields of `Observation`.

    Every prompt with every seed in every cell; the modes answer the same request one after the other.
    """
    for seed in seeds:
        for number, prompt in enumerate(prompts):
            for cell in cells:
                for mode, (port, rig) in scenes.items():
                    body = {
                        "model": rig.ready["model"], "messages": [{"role": "user", "content": prompt}],
                        "max_tokens": max_tokens, "temperature": cell.temperature,
                        "seed": seed * len(prompts) + number, "edgespec": {"usage": True, **ARMS[cell.arm]},
                    }  # fmt: skip
                    seen = observe(port, rig.key, body)
                    yield {**asdict(cell), "mode": mode, "prompt": number, "seed": seed, **asdict(seen)}


def save(path: Path, rows: Sequence[Row]) -> None:
    """One line of JSON for each completion, compressed."""
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def load(path: Path) -> list[Row]:
    """What `save` wrote."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]
