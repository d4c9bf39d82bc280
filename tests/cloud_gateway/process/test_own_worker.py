"""The configuration of the gateway's own worker."""

from __future__ import annotations

from pathlib import Path

from cloud_gateway.process.config import LocalDraftSection
from cloud_gateway.process.own_worker import _configuration
from edgespec.shared.settings import parse
from edgespec.worker.config import WorkerSettings


def test_it_drafts_as_the_local_draft_is_configured(tmp_path: Path) -> None:
    draft = LocalDraftSection(model="/m/draft.gguf", threads=3, n_gpu_layers=9, cpu=(1, 2))
    made = parse(_configuration(draft, tmp_path), WorkerSettings, "worker.toml")
    assert (made.draft.model, made.draft.threads, made.draft.n_gpu_layers) == ("/m/draft.gguf", 3, 9)
    assert made.daemon.cpu == (1, 2) and made.owner.mode == "always"
