"""GGUF files through llama.cpp: in another format, and counted as it loads them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp

from edgespec.core.errors import ModelError


def requantise(source: Path, out: Path, fmt: str) -> None:
    """Writes `source` to `out` with its weights in `fmt` (a name of llama.cpp, as "q4_0"), from whatever they are in.

    Raises ModelError.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{fmt.upper()}")
    params.allow_requantize = True
    with _QuietLlama() as log:
        failed = llama_cpp.llama_model_quantize(bytes(source), bytes(out), ctypes.byref(params))
    if failed:
        raise ModelError(f"llama.cpp cannot write {source.name} as {fmt}: {log.reason()}.")


def count_loaded_layers(path: Path) -> int:
    """Loads a model in llama.cpp, weights and all, and returns its number of layers; ModelError when it cannot."""
    with _QuietLlama() as log:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(bytes(path), params)
        if not model:
            raise ModelError(f"llama.cpp does not load {path.name}: {log.reason()}.")
        layers = int(llama_cpp.llama_model_n_layer(model))
        llama_cpp.llama_model_free(model)
    return layers


class _QuietLlama:
    """Keeps llama.cpp's chatter off the terminal while it is at work, and keeps its last error line."""

    def __enter__(self) -> _QuietLlama:
        self._last_error = ""
        self._callback = llama_cpp.llama_log_callback(self._keep)  # held here, so that C may call it
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))
        return self

    def __exit__(self, *_: object) -> None:
        llama_cpp.llama_log_set(llama_cpp._logger.llama_log_callback, ctypes.c_void_p(0))

    def _keep(self, level: int, text: bytes, _user_data: object) -> None:
        if level == 4 and text.strip():  # GGML_LOG_LEVEL_ERROR
            self._last_error = text.decode("utf-8", "replace").strip()

    def reason(self) -> str:
        """What llama.cpp complained of last."""
        return self._last_error or "it gives no reason"
