"""`system_fingerprint` names everything that could change the text."""

from __future__ import annotations

import sys

import pytest

from cloud_gateway.models import grammar
from cloud_gateway.process import loading
from cloud_gateway.process.config import GatewaySettings
from edgespec.shared.settings import override


def test_the_fingerprint_changes_with_model_choices_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed")
    seen = {plain, loading.fingerprint(b"other", "tokenizer", "float32", "cpu", "packed")}
    for changed in (["x", "float32", "cpu", "packed"], ["tokenizer", "bfloat16", "cpu", "packed"],
                    ["tokenizer", "float32", "cuda", "packed"], ["tokenizer", "float32", "cpu", "plain"]):  # fmt: skip
        seen.add(loading.fingerprint(b"model", *changed))
    monkeypatch.setattr(grammar, "version", lambda: "another")
    seen.add(loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed"))
    monkeypatch.setattr(loading, "__version__", "another")
    seen.add(loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed"))
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "another")
    seen.add(loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed"))
    assert len(seen) == 9 and all(one.startswith("es_") for one in seen)
    monkeypatch.undo()
    assert loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed") == plain


def test_every_setting_that_could_change_the_text_of_a_seed_is_in_it() -> None:
    settings = [GatewaySettings()]
    for key, value in (("target.dtype", "float32"), ("target.exact", "no"), ("policy.verification", "rejection")):
        settings.append(override(GatewaySettings(), key, value))
    assert len({loading.choices(one) for one in settings}) == len(settings)
    assert loading.choices(override(GatewaySettings(), "policy.k", "5")) == loading.choices(GatewaySettings())
