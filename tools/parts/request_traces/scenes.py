"""`python -m tools.parts.request_traces.scenes`: records the shipped traces again.

These traces are of a real gateway and worker, and tests hold every decision of a policy to them. After a policy was
changed on purpose, record them, and look at what `edgespec replay` shows of them before committing them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from edgespec.shared import models
from edgespec_lab import options as checked
from edgespec_lab import verbs
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo.arms import PHI
from edgespec_lab.demo.scene import PROMPTS, read_lines
from edgespec_lab.rig import Rig, RigError

ROOT = Path(__file__).parents[3]
COMPARED = "tests/parts/baselines"
"""The folder of the traces whose policies a part brings."""
WRITTEN_S = 10.0
"""Longest wait for the recorder's thread."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One trace: a draft model, a round trip and what the request asks for."""

    name: str
    policy: str
    prompt: int
    """Of the demo's prompts, from 0; none serves twice, so that no cache helps."""
    k: int = 2
    draft: str = "quantised"
    rtt_ms: float = 20.0
    tokens: int = 64
    endless: bool = False
    """Go on behind a token that ends the answer."""
    worker_ends_after: int | None = None
    """Chunks of the answer after which the worker is killed."""
    folder: str = "tests/parts/request_traces/traces"


SCENES = (
    Scene("wanspec-20ms", "wanspec", 0),
    Scene("rolling-k-20ms", "rolling-k", 1, folder=COMPARED),
    Scene("colocated-k4", "colocated", 2, k=4, folder=COMPARED),
    Scene("worker-lost", "wanspec", 3, tokens=160, worker_ends_after=26),
    Scene("wanspec-dropped-40ms", "wanspec", 4, draft="dropped", rtt_ms=40.0),
    Scene("adaptive-20ms", "adaptive", 5, tokens=128),
    Scene("adaptive-dropped-40ms", "adaptive", 6, draft="dropped", rtt_ms=40.0),
)


def record(scenes: Sequence[Scene], say: Callable[[str], None]) -> dict[str, bytes]:
    """The traces by name: one stage for each pair of draft and round trip."""
    prompts = [line.prompt for line in read_lines(PROMPTS)]
    found: dict[str, bytes] = {}
    for draft, rtt_ms in dict.fromkeys((scene.draft, scene.rtt_ms) for scene in scenes):
        with tempfile.TemporaryDirectory(prefix="edgespec-traces-") as scratch:
            folder = Path(scratch) / "traces"
            with _rig(Path(scratch) / "rig", draft, rtt_ms, folder).linked() as stage:
                chosen = [scene for scene in scenes if (scene.draft, scene.rtt_ms) == (draft, rtt_ms)]
                for scene in sorted(chosen, key=lambda scene: scene.worker_ends_after is not None):
                    found[scene.name] = _run(stage, scene, prompts[scene.prompt], folder)
                    say(f"{scene.name}: {len(found[scene.name])} bytes")

    return found


def _rig(folder: Path, draft: str, rtt_ms: float, traces: Path) -> Rig:
    model = str(models.quantised() if draft == "quantised" else models.dropped())
    options = {"traces.folder": str(traces)}
    return Rig(folder, str(models.quantised()), model, model, rtt_ms=rtt_ms, gateway_options=options, cores=(0, 1))


def _run(stage: Rig, scene: Scene, prompt: str, folder: Path) -> bytes:
    before = set(folder.glob("*.trace"))
    extension: dict[str, Any] = {"policy": scene.policy, "k": scene.k, "ignore_eos": scene.endless}
    if scene.policy != "adaptive":
        extension["phi"] = PHI

    chunks = stage.stream(prompt, scene.tokens, **extension)
    for number, _ in enumerate(chunks):
        if number == scene.worker_ends_after:
            stage.stop("worker", SIGKILL)
    deadline = time.monotonic() + WRITTEN_S
    while not (new := set(folder.glob("*.trace")) - before):
        if time.monotonic() > deadline:
            raise RigError(f"The gateway wrote no trace of {scene.name}. It said:\n{stage.log('gateway')[-500:]}")
        time.sleep(0.05)

    return new.pop().read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.request_traces.scenes", description=__doc__)
    names = [scene.name for scene in SCENES]
    name = checked.known(names, "trace")
    parser.add_argument("names", nargs="*", type=name, metavar="NAME", help=f"{', '.join(names)} (default: all)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default: of the shipped ones)")
    parser.set_defaults(run=write)
    return verbs.run(parser, arguments)


def write(options: argparse.Namespace) -> int:
    """Records all, then writes. Raises EdgespecError."""
    scenes = [scene for scene in SCENES if not options.names or scene.name in options.names]
    gateway_choices(*(scene.policy for scene in scenes))
    found = record(scenes, print)
    for scene in scenes:
        folder: Path = options.out or ROOT / scene.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{scene.name}.trace").write_bytes(found[scene.name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
