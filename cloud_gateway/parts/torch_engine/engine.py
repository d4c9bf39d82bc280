"""The engine `torch`: when it is chosen, what it refuses, the memory that it takes, and how it loads a target."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from cloud_gateway.part import Place
from cloud_gateway.process.config import TargetSection
from edgespec.shared.part import Settings, thread_rule
from edgespec.shared.settings import Section

if TYPE_CHECKING:
    from cloud_gateway.models.headers import Need
    from cloud_gateway.models.target_model.load import LoadedModel
    from cloud_gateway.parts.torch_engine.load import Dtype
    from edgespec.shared.vocabfiles import Vocabulary

log = logging.getLogger("cloud_gateway.process.loading")
NAME = "torch"
EXACT_NUMBER = 8
"""Bytes of a key's number on a CPU under `target.exact`; families outside Llama's take fewer."""


class TorchSection(Section, frozen=True, kw_only=True):
    """[target]: how torch computes it."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Annotated[
        str, Meta(pattern=r"^(auto|cpu|cuda(:\d{1,2})?)\Z", extra={"allowed": '"auto", "cpu", "cuda" or "cuda:N"'})
    ] = "auto"


def device_conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """llama.cpp has a setting of its own for a GPU."""
    device = settings.of(TorchSection).device
    if device.startswith("cuda") and settings.of(TargetSection).engine == "llamacpp":
        yield "target.device", '"auto" or "cpu" if `target.engine` is "llamacpp": set `target.n_gpu_layers` for a GPU'


class TorchEngine:
    """The `TargetEngine` of this part."""

    packages: Sequence[str] = ("transformers", "torch")

    def suits(self, model: Path, settings: Settings) -> bool:
        """A folder, float32 and CUDA are for torch, and all else if llama.cpp is not installed."""
        options = settings.of(TorchSection)
        if model.is_dir() or options.dtype == "float32" or not _installed("llama_cpp"):
            return True
        return on_cuda(options.device)

    def check(self, model: Path, settings: Settings) -> None:
        from cloud_gateway.parts.torch_engine.headers import check_torch
        from cloud_gateway.parts.torch_engine.load import device_for

        check_torch(model)
        device = settings.of(TorchSection).device
        if device.startswith("cuda"):
            device_for(device)

    def vocabulary(self, model: Path) -> Vocabulary:
        from edgespec.shared.hf_vocabulary import vocabulary

        return vocabulary(model)

    def need(self, model: Path, settings: Settings) -> Need:
        from cloud_gateway.parts.torch_engine.headers import torch_need

        options = settings.of(TorchSection)
        weight_bytes = 2
        if dtype_for(options) == "float32":
            weight_bytes = 4

        number_bytes = weight_bytes
        if settings.of(TargetSection).exact != "no" and not on_cuda(options.device):
            number_bytes = EXACT_NUMBER

        return torch_need(model, weight_bytes, number_bytes)

    def place(self, settings: Settings) -> Place:
        device = settings.of(TorchSection).device
        if not on_cuda(device):
            return Place()

        import torch

        number = None
        if device != "auto":
            number = device
        return Place(on_gpu=True, free=torch.cuda.mem_get_info(number)[0])

    def load(self, model: Path, settings: Settings, kv_tokens: int) -> LoadedModel:
        import torch

        from cloud_gateway.models.target_model.load import LoadedModel
        from cloud_gateway.parts.torch_engine.linear import BLOCK_ROWS
        from cloud_gateway.parts.torch_engine.load import load
        from cloud_gateway.parts.torch_engine.target import MAX_LONE_ROWS, TorchTarget

        options = settings.of(TargetSection)
        own_options = settings.of(TorchSection)
        dtype = dtype_for(own_options)
        loaded = load(model, dtype, own_options.device)
        log.info("target %s loaded in %s by torch", model.name, dtype)

        max_lone_rows = MAX_LONE_ROWS
        if options.exact == "yes":
            max_lone_rows = BLOCK_ROWS
        target = TorchTarget(
            loaded.model,
            slots=options.slots,
            context=options.context,
            kv_tokens=kv_tokens,
            threads=options.threads,
            thread_rule=thread_rule(settings.parts),
            exact=options.exact != "no",
            max_lone_rows=max_lone_rows,
        )

        if target.exact:
            log.info("the target is exact")
        else:
            level = logging.WARNING if options.exact == "yes" else logging.INFO
            log.log(level, "the target is not exact: %s", target.inexact_because)
        return LoadedModel(target, loaded, f"{target.device} {dtype} {torch.__version__}")


def dtype_for(options: TorchSection) -> Dtype:
    """`target.dtype`, or what "auto" stands for: bfloat16 on a GPU, what is fast on other processors."""
    if options.dtype != "auto":
        return options.dtype
    if on_cuda(options.device):
        return "bfloat16"

    from cloud_gateway.parts.torch_engine.load import fast_dtype

    return fast_dtype()


def on_cuda(device: str) -> bool:
    """Whether a target on this device is on a GPU."""
    return device.startswith("cuda") or (device == "auto" and _cuda())


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _cuda() -> bool:
    """Whether torch could use a GPU. torch takes seconds to import, so it is asked only if a driver is loaded."""
    if not Path("/proc/driver/nvidia").exists() or not _installed("torch"):
        return False

    import torch

    return torch.cuda.is_available()
