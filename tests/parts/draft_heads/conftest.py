"""Tests that need a target in torch, or the lab, are left out without the part that computes such targets."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore: list[str] = []
if find_spec("cloud_gateway.parts.torch_engine") is None:
    collect_ignore += ["test_heads.py", "test_train.py", "test_train_kinds.py"]
