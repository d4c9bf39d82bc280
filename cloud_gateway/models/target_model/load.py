"""Finds, converts and loads the target model. Nothing is fetched from a network.

transformers takes some ten seconds to unpack a GGUF file, so that is done once: the result is kept as a safetensors
folder, `$XDG_CACHE_HOME/edgespec/targets/<sha256>-<dtype>`, which loads in about a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgespec.core.errors import ModelError
from edgespec.shared.folders import cache_dir
from edgespec.shared.hf_vocabulary import hf_vocabulary
from edgespec.shared.models import model_digest
from edgespec.shared.vocabfiles import gguf_metadata, gguf_vocabulary, vocabulary_in

os.environ.setdefault("TQDM_DISABLE", "1")  # tqdm, of which transformers draws bars, reads it when torch imports it
Dtype = Literal["float32", "bfloat16"]
CONVERSION = 1
"""Increased when the conversion changes, so that older folders are made again."""
NOTE = "edgespec.json"
DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""`tokenizer.ggml.pre` of tokenizers that split numbers into digits before GPT-2's pattern, as in llama.cpp."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokenizer, transformers' fast one, and what identifies both."""

    tokenizer: Any
    model_digest: bytes
    """SHA-256 of the file or folder that the operator named, before any conversion."""
    tokenizer_digest: bytes
    """The digest that `Hello` and `Challenge` carry."""


@dataclass(frozen=True, slots=True)
class Loaded(Vocabulary):
    """With the model itself, transformers' object, and the folder that it was read from."""

    model: Any
    folder: Path


def load(path: Path, dtype: Dtype, device: str = "auto") -> Loaded:
    """Loads a GGUF file or a folder with safetensors; `device` is `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises ModelError: missing, corrupt, not a causal language model, or no such device.
    """
    if path.is_dir():
        folder = path
        digest = folder_digest(path)
        vocabulary = hf_vocabulary(path).digest
    else:
        digest = model_digest(path)
        vocabulary = gguf_vocabulary(path).digest
        folder = _made(digest, dtype, lambda part: _convert(path, part, dtype))
    tokenizer = load_tokenizer(folder)
    with _named(path):
        model = _transformers().AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True
        )
    chosen = device_for(device)
    try:
        return Loaded(tokenizer, digest, vocabulary, model.eval().to(chosen), folder)
    except RuntimeError as error:
        raise ModelError(f"{path} does not fit on {chosen} ({_first_line(error)}).") from error


def fast_dtype() -> Dtype:
    """The type of number that this processor multiplies fast: bfloat16 where oneDNN has packed products of it.

    On other processors a product of n rows takes n times as long in bfloat16, so verifying drafts would save nothing.
    """
    import torch

    from cloud_gateway.models.target_model.linear import can_pack

    if can_pack(torch.device("cpu"), torch.bfloat16):
        return "bfloat16"
    return "float32"


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, chat template included. Raises ModelError."""
    with _named(folder):
        return _transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)


def load_vocabulary(path: Path) -> tuple[Vocabulary, Sequence[int]]:
    """The tokenizer of a GGUF file without its weights, kept in the same cache, and the tokens that end a completion.

    Raises ModelError.
    """
    metadata = gguf_metadata(path)
    digest = model_digest(path)
    folder = _made(digest, "tokenizer", lambda part: _gguf_tokenizer(path, metadata).save_pretrained(part))
    return Vocabulary(load_tokenizer(folder), digest, vocabulary_in(metadata, path).digest), _ends(metadata)


def folder_digest(folder: Path) -> bytes:
    """SHA-256 of the weights file; of several files the SHA-256 over their digests, in the order of the names."""
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise ModelError(f"The folder {folder} holds no model: config.json and *.safetensors are needed.")
    digests = [model_digest(file) for file in files]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(b"".join(digests)).digest()


def target_cache() -> Path:
    """Where converted models are kept; it need not exist."""
    return cache_dir() / "targets"


def _made(digest: bytes, kind: str, make: Callable[[Path], object]) -> Path:
    """The folder of the cache for what `make` writes of the file of this digest; makes it if there is none."""
    folder = target_cache() / f"{digest.hex()[:16]}-{kind}"
    note = {"conversion": CONVERSION, "source_sha256": digest.hex()}
    try:
        if json.loads((folder / NOTE).read_text()) == note:
            return folder
    except (OSError, ValueError):
        pass  # missing or unreadable: made below
    try:
        _make_atomically(folder, note, make)
    except OSError as error:
        raise ModelError(
            f"The converted model cannot be written to {folder.parent} ({error.strerror or error}); make room there."
        ) from error

    return folder


def _make_atomically(folder: Path, note: dict[str, Any], make: Callable[[Path], object]) -> None:
    """A reader finds the whole folder or none. Two processes may run it at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        part = Path(scratch) / "model"
        make(part)
        (part / NOTE).write_text(json.dumps(note))
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        try:
            part.rename(folder)
        except OSError:
            if not (folder / NOTE).is_file():  # otherwise another process was faster, with the same result
                raise


def _gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> Any:
    with _named(path):
        source = {"gguf_file": path.name, "local_files_only": True}
        tokenizer = _transformers().AutoTokenizer.from_pretrained(path.parent, **source)
    if metadata.get("tokenizer.ggml.pre") in DIGITS_APART:
        _split_digits(tokenizer)
    return tokenizer


def _convert(path: Path, part: Path, dtype: Dtype) -> None:
    """Unpacks a GGUF file into a safetensors folder with tokenizer and chat template."""
    import torch

    transformers = _transformers()
    metadata = gguf_metadata(path)
    source = {"gguf_file": path.name, "local_files_only": True}
    with _named(path):
        unpack = transformers.GgufConfig(dequantize=True)
        packed = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, **source, dtype=dtype, quantization_config=unpack
        )

    # The loaded model's configuration names its file and quantisation; a new model of its class takes the weights.
    config = packed.config
    config.__dict__.pop("quantization_config", None)
    config.dtype = dtype
    with torch.device("meta"):
        plain = type(packed)(config)
    wanted = getattr(torch, dtype)
    plain.load_state_dict({name: weight.to(wanted) for name, weight in packed.state_dict().items()}, assign=True)
    plain.tie_weights()
    plain.generation_config = transformers.GenerationConfig(eos_token_id=_ends(metadata) or config.eos_token_id)
    plain.save_pretrained(part)
    _gguf_tokenizer(path, metadata).save_pretrained(part)


def _ends(metadata: dict[str, Any]) -> list[int]:
    """Tokens that end a completion (end of text, of turn, of message), under the keys that llama.cpp reads."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    return sorted({int(metadata[key]) for key in keys if key in metadata})


def _split_digits(tokenizer: Any) -> None:
    from tokenizers import Regex, pre_tokenizers

    digits = pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])


def device_for(name: str) -> str:
    """The device of this name; `auto` is a GPU if torch has one. Raises ModelError for a GPU that is not there."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        if count:
            return "cuda"
        return "cpu"
    if name.startswith("cuda") and count <= int(name.partition(":")[2] or 0):
        if count:
            there = f"only {count} CUDA device{'s' * (count != 1)}"
        else:
            there = "no CUDA device"
        raise ModelError(f'`target.device` is "{name}" and there is {there} here; set it to "cpu" or "auto".')

    return name


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turns any failure inside into a ModelError that names the model."""
    try:
        yield
    except ModelError:
        raise
    except MemoryError as error:
        raise ModelError(f"There is not enough memory to load {path}.") from error
    except Exception as error:  # transformers raises errors of any type for a broken file
        kind = type(error).__name__
        if "Unrecognized configuration class" in str(error) or "not supported" in str(error):
            raise ModelError(f"{path} is not a causal language model that transformers can load.") from error
        raise ModelError(f"{path} is corrupt or cannot be used ({kind}: {_first_line(error)}).") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")[:200]


def _transformers() -> Any:
    """The library, without output and network; it reads these variables when it is first imported."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
