"""Traces of the real engine over the model that is a hash function."""

from __future__ import annotations

from pathlib import Path

from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation
from cloud_gateway.core.verify.interface import Constraint
from cloud_gateway.part import choices_of
from cloud_gateway.parts import all_parts
from cloud_gateway.parts.request_traces.format import Trace, unseal
from cloud_gateway.parts.request_traces.recorder import Recorder
from edgespec.core.protocol.messages import Sampling
from edgespec.core.protocol.signing import SigningKey
from tests.support.engines import engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.workers import LoopWorker

METHODS = choices_of(all_parts()).methods
"""Methods of verification, by name."""
KEY = SigningKey(bytes(range(32)))
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SETTINGS = {name: Speculation(policy=name, k=2, phi=1.5) for name in POLICIES}


async def record(
    folder: Path,
    speculations: list[Speculation],
    count: int = 60,
    *,
    worker: LoopWorker | None = None,
    dies_after: int | None = None,
    sampling: Sampling | None = None,
    constraint: Constraint | None = None,
    target: TableTarget | None = None,
    **settings: object,
) -> list[Path]:
    """Answers one request after another with the recorder on; returns the files in that order."""
    kept = {"salt": True, "limit_bytes": 2**21, "keep": 1000, **settings}
    recorder = Recorder(folder, KEY, **kept)
    worker = worker or LoopWorker(0.002, 0.8)
    with engines(recorders=[recorder]) as make:
        engine = make(worker, TableDraft(0.7), target, methods=METHODS)
        for speculation in speculations:
            emitted = 0
            wanted = GenerationRequest(
                PROMPT, count, sampling or Sampling(), ignore_eos=True, speculation=speculation, constraint=constraint
            )
            async for event in engine.submit(wanted):
                emitted += 0 if isinstance(event, DoneEvent) else len(event.tokens)
                if dies_after is not None and emitted >= dies_after and worker.up:
                    worker.die()
    recorder.close()
    return [path for _, path in sorted((path.stem.rpartition("-")[2], path) for path in folder.glob("*.trace"))]  # noqa: ASYNC240


def read(path: Path) -> Trace:
    """A file's trace."""
    return unseal(path.read_bytes())[0]
