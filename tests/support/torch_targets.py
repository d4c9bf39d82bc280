"""Targets that show their states and layers, for tests of parts that draft with those.

A part that can be removed computes them: without it, the tests that need such a target are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import GatewaySettings, schema
from cloud_gateway.process.targets import engines_of
from edgespec.shared.settings import overridden

ENGINE = "torch"
MODULE = "cloud_gateway.parts.torch_engine.target"


def torch_target(model: Any, **options: Any) -> Any:
    """A `TorchTarget` of a model of transformers."""
    target = pytest.importorskip(MODULE, reason="the part that computes targets in torch is removed")
    return target.TorchTarget(model, **options)


def torch_settings(values: Mapping[str, Any]) -> GatewaySettings:
    """Settings of a gateway with all parts, whose target this engine computes in float32."""
    if ENGINE not in engines_of(all_parts()):
        pytest.skip("the part that computes targets in torch is removed")

    computed = {"target.engine": ENGINE, "target.threads": 1, "target.dtype": "float32"}
    return overridden(schema(all_parts())(), {**computed, **values})
