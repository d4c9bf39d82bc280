"""Makes a draft model from a GGUF file: some layers dropped, or the weights in another format, or both.

    python -m tools.make_draft --drop 10              the demo's hard case: 60-70 % of its draft tokens are right
    python -m tools.make_draft --format q4_0          the demo's fast draft: half the time a step, about 80 % right
    python -m tools.make_draft --drop 8,16 --format q4_0

Dropping copies every other tensor byte for byte and all metadata (`edgespec/lab/gguf_layers.py`). `--format`
re-quantises through llama.cpp. Quantising twice hurts: after the Q4_1 file's own tokens, a Q4_0 copy of it is right
0.78 of the time, a Q8_0 copy 0.96, so give it the least quantised source there is (dev/LOG.md compares formats and the
time of a step).
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from edgespec.core.errors import ConfigError, ModelError
from edgespec.lab.gguf_layers import Layer, block_count, copy_layers
from edgespec.shared import models
from tools import verbs

FORMATS = ("bf16", "f16", "q8_0", "q4_0", "iq4_nl")


def make_draft(source: Path, out: Path, layers: Collection[int] = (), fmt: str | None = None) -> int:
    """Writes `source` without `layers`, in `fmt` (None: as it is), to `out`; returns the number of layers left.

    `out` appears only when llama.cpp loads it. Raises ModelError when `source` is no usable GGUF, ConfigError when a
    layer is not there to be dropped.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=out.parent) as scratch:
            made = Path(scratch) / out.name
            expected = drop_layers(source, made, layers)
            if fmt is not None:
                requantised = made.with_suffix(f".{fmt}")
                requantise(made, requantised, fmt)
                made = requantised
            loaded = count_loaded_layers(made)
            if loaded != expected:
                raise ModelError(f"llama.cpp sees {loaded} layers in the draft made from {source}, not {expected}.")
            made.replace(out)
    except OSError as error:
        raise ModelError(f"The draft {out} cannot be written: {error.strerror or error}.") from error
    return loaded


def drop_layers(source: Path, out: Path, layers: Collection[int]) -> int:
    """Copies `source` to `out` without `layers` (counted from 0) and renumbers the rest; returns how many are left."""
    count = block_count(source)
    kept = [Layer(layer) for layer in range(count) if layer not in layers]
    if not set(layers) <= set(range(count)) or not kept:
        raise ConfigError(f"--drop takes layers from 0 to {count - 1} of {source.name}, and must leave at least one.")
    copy_layers(source, out, kept)
    return len(kept)


def requantise(source: Path, out: Path, fmt: str) -> None:
    """Writes `source` to `out` with its weights in `fmt`, one of FORMATS, from whatever format they have."""
    import llama_cpp

    ftypes = {
        "bf16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
        "f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
        "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
        "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
        "iq4_nl": llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_NL,
    }
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = ftypes[fmt]
    params.allow_requantize = True
    with _QuietLlama() as log:
        failed = llama_cpp.llama_model_quantize(bytes(source), bytes(out), ctypes.byref(params))
    if failed:
        raise ModelError(f"llama.cpp cannot write {source.name} as {fmt}: {log.reason()}.")


def count_loaded_layers(path: Path) -> int:
    """Loads a model in llama.cpp, weights and all, and returns its number of layers; ModelError when it cannot."""
    import llama_cpp

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
        import llama_cpp

        self._last_error = ""
        self._callback = llama_cpp.llama_log_callback(self._keep)  # held here, so that C may call it
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))
        return self

    def __exit__(self, *_: object) -> None:
        from llama_cpp import _logger, llama_log_set

        llama_log_set(_logger.llama_log_callback, ctypes.c_void_p(0))

    def _keep(self, level: int, text: bytes, _user_data: object) -> None:
        if level == 4 and text.strip():  # GGML_LOG_LEVEL_ERROR
            self._last_error = text.decode("utf-8", "replace").strip()

    def reason(self) -> str:
        """What llama.cpp complained of last."""
        return self._last_error or "it gives no reason"


def _layers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.make_draft", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="the GGUF to start from (default: the demo's model)")
    parser.add_argument("--drop", type=_layers, default=[], metavar="N[,N...]", help="layers to drop, counted from 0")
    parser.add_argument("--format", choices=FORMATS, help="write the weights in this format (default: as they are)")
    parser.add_argument("--out", type=Path, help="where to (default: beside the demo's models)")
    parser.add_argument("--force", action="store_true", help="make it again when it is there")
    parser.set_defaults(run=make)
    return verbs.run(parser, argv)


def make(options: argparse.Namespace) -> int:
    """Writes the draft unless it is there. Raises ConfigError, ModelError."""
    if not options.drop and options.format is None:
        raise ConfigError("There is nothing to change: give --drop, --format, or both.")
    source = options.source or models.quantised()
    out = options.out or models.model_dir() / _default_name(source, options.drop, options.format)
    if out.is_file() and not options.force:
        print(f"{out} is there already")
        return 0
    print(f"making {out.name} from {source.name}", flush=True)
    layers = make_draft(source, out, options.drop, options.format)
    print(f"{out}: {out.stat().st_size / 1e6:.0f} MB, {layers} layers")
    return 0


def _default_name(source: Path, layers: Sequence[int], fmt: str | None) -> str:
    name = models.dropped_name(source.name, layers) if layers else source.name
    return models.requantised_name(name, fmt) if fmt else name


if __name__ == "__main__":
    sys.exit(main())
