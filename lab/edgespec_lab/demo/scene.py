"""What a table of the demo needs: models, prompts, and gateway and worker on a core each beside a neighbour."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edgespec.core.errors import ConfigError
from edgespec.shared import models
from edgespec_lab.demo.arms import Bench
from edgespec_lab.rig import LLAMACPP, TORCH, Rig
from edgespec_lab.rig.neighbour import Neighbour

PROMPTS = Path(__file__).with_name("prompts.jsonl")
DRAFTS = {"quantised": models.quantised, "requantised": models.requantised, "dropped": models.dropped}
DRAFTS |= {"smollm": models.quantised, "gemma": models.gemma}
TARGETS = {"smollm": models.quantised, "gemma": models.gemma}


def make_rig(folder: Path, target: str, draft: str, rtt_ms: float, **more: Any) -> Rig:
    """Gateway and worker on a core each if there are two, with the same draft, and without prefix caches."""
    return Rig(
        folder=folder, target=target, draft=draft, local_draft=draft, rtt_ms=rtt_ms,
        gateway_options={
            "api.prefix_cache": False,
        },
        cores=two_cores(),
        **more,
    )  # fmt: skip


def usual_engine() -> str:
    """The engine of a target in GGUF if the options name none: torch if the gateway has that part."""
    from cloud_gateway.parts import all_parts

    if any(TORCH in part.engines for part in all_parts()):
        return TORCH
    return LLAMACPP


def two_cores() -> tuple[int | None, int | None]:
    """Cores of gateway and worker; none if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        return (cores[0], cores[1])
    return (None, None)


@contextlib.contextmanager
def benched(rig: Rig) -> Iterator[Bench]:
    """A linked rig with a neighbour, when there is a second core for it."""
    core = rig.cores[1]
    with contextlib.ExitStack() as closing:
        beside = None
        if core is not None:
            beside = closing.enter_context(Neighbour(rig.folder, rig.draft, core))
        yield Bench(rig, beside)


class Line(NamedTuple):
    prompt: str
    kind: str = "chat"
    """The kind of text."""


def read_lines(path: Path) -> list[Line]:
    """JSON objects with `prompt` or `turns`, and maybe `kind`. Raises ConfigError naming a line that has not."""
    try:
        texts = path.read_text(encoding="utf-8").split("\n")  # U+2028 inside of a prompt ends no line
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompts in {path} cannot be read: {getattr(error, 'strerror', error)}.") from error
    lines = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
            prompt = entry["prompt"] if "prompt" in entry else entry["turns"][0]
            lines.append(Line(str(prompt), str(entry.get("kind", "chat"))))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(f"Line {number} of {path} is no JSON object with `prompt` or `turns`.") from error
    if not lines:
        raise ConfigError(f"{path} has no prompts; give one in each line, as JSON.")

    return lines


def read_prompts(path: Path, limit: int, seed: int) -> list[str]:
    """Up to `limit` prompts, drawn with the seed. Raises ConfigError naming the line that cannot be used."""
    prompts = [line.prompt for line in read_lines(path)]
    if limit < 1:
        raise ConfigError(f"--limit is {limit}; it takes 1 prompt or more.")
    return random.Random(seed).sample(prompts, min(limit, len(prompts)))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises ConfigError if the block cannot write to this path."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror or error}); name another path.") from None


def progress(console: Console) -> Progress:
    """A bar with a count and the time so far."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
