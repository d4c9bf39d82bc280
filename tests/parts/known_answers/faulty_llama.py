"""Faults planted into llama.cpp's Python package, in every process that a test starts."""

from __future__ import annotations

from pathlib import Path

import pytest

WRONG = "llama.llama_decode = lambda context, batch: wrong(batch) or real(context, batch)"
"""Each batch of two or more rows is computed for other tokens."""
WRONG_ROW = "llama.llama_decode = lambda context, batch: wrong(batch, [{row}]) or real(context, batch)"
"""Only this row of a batch is computed for another token, as a wrong tile of AMX leaves the rows of others right."""
CRASH = "llama.llama_model_load_from_file = lambda *_: signal.raise_signal(signal.SIGILL)"
HANG = "llama.llama_decode = lambda *_: time.sleep(600)"
SLOW = "llama.llama_decode = lambda context, batch: time.sleep(0.4) or real(context, batch)"
_SITE = """
import os, signal, sys, time
import llama_cpp as llama
real = llama.llama_decode
def wrong(batch, rows=None):
    if batch.n_tokens > 1:
        for row in range(batch.n_tokens) if rows is None else rows:
            batch.token[row] = (batch.token[row] + 7) % 32
"""


def plant(monkeypatch: pytest.MonkeyPatch, folder: Path, fault: str) -> None:
    """Until the end of the test; processes that run already are unaffected."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE + fault + "\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
