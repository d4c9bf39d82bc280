"""GGUF files through llama.cpp: in another format, and counted as it loads them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp

from edgespec.core.errors import ModelError
from edgespec.llamacpp.context import quiet, reason


def requantise(source: Path, out: Path, fmt: str) -> None:
    """Writes `source` to `out` with its weights in `fmt` (a name of llama.cpp, as "q4_0"), from whatever they are in.

    Raises ModelError.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{fmt.upper()}")
    params.allow_requantize = True

    quiet()
    failed = llama_cpp.llama_model_quantize(
        bytes(source),
        bytes(out),
        ctypes.byref(params),
    )
    if failed:
        raise ModelError(f"llama.cpp cannot write {source.name} as {fmt}{reason()}.")


def count_loaded_layers(path: Path) -> int:
    """Loads a model in llama.cpp, weights and all, and returns its number of layers; ModelError when it cannot."""
    quiet()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(bytes(path), params)
    if not model:
        raise ModelError(f"llama.cpp does not load {path.name}{reason()}.")

    layers = int(llama_cpp.llama_model_n_layer(model))
    llama_cpp.llama_model_free(model)
    return layers
