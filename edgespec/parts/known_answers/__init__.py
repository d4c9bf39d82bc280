"""Known answers: llama.cpp computes some tokens in a child process before a program trusts it with a model.

A library that was compiled for another processor crashes, hangs or computes other numbers, and the child meets that in
the program's place (trial.py, child.py). The gateway has a part of the same name, which brings the same trial.
"""

from __future__ import annotations

from pathlib import Path

from edgespec.worker.part import WorkerPart


def try_llama(model: Path, gpu_layers: int, *, again: bool) -> bool:
    """The part's `ModelTrial`."""
    from edgespec.parts.known_answers.trial import require_known_answer

    return require_known_answer(model, gpu_layers, again=again)


PART = WorkerPart("known_answers", trial=try_llama)
