"""Targets in torch: `target.engine = "torch"`, with transformers' models in folders or GGUF files, on a CPU or on CUDA.

`engine` fills the seam, `target` verifies trees, `forward` and `llama_forward` are its two forward passes, and `linear`
has the products that are exact on a CPU. It takes the families of `headers`; docs/models.md lists them.
"""

from __future__ import annotations

from pathlib import Path

from cloud_gateway.part import GatewayPart
from cloud_gateway.parts.torch_engine.engine import NAME, TorchEngine, TorchSection, device_conflicts

PART = GatewayPart(
    "torch_engine",
    {"target": TorchSection},
    check=device_conflicts,
    example=Path(__file__).with_name("gateway.toml"),
    engines={NAME: TorchEngine()},
)
