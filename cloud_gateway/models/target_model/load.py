"""Finds and loads the tokenizer of a target model. Nothing is fetched from a network.

transformers takes seconds to unpack a GGUF file, so that is done once: the result is kept as a folder,
`$XDG_CACHE_HOME/edgespec/targets/<sha256>-<kind>`, of kind `tokenizer` or what else an engine makes of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloud_gateway.models.target_model import LoadedTarget
from cloud_gateway.models.target_model.gguf_tokenizer import converted_tokenizer
from edgespec.core.errors import ModelError
from edgespec.shared.folders import cache_dir
from edgespec.shared.models import model_digest
from edgespec.shared.vocabfiles import gguf_metadata, vocabulary_in

os.environ.setdefault("TQDM_DISABLE", "1")  # tqdm, of which transformers draws bars, reads it when torch imports it
CONVERSION = 1
"""Increased when the conversion changes, so that older folders are made again."""
NOTE = "edgespec.json"
DIGITS_APART = {
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
}
"""`tokenizer.ggml.pre` of tokenizers that split numbers into digits before GPT-2's pattern, as in llama.cpp."""


@dataclass(frozen=True, slots=True)
class LoadedVocabulary:
    """A model's tokenizer, transformers' fast one, and what identifies both."""

    tokenizer: Any
    model_digest: bytes
    """SHA-256 of the file or folder that the operator named, before any conversion."""
    tokenizer_digest: bytes
    """The digest that `Hello` and `Challenge` carry."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What an engine makes of the files of a target."""

    target: LoadedTarget
    vocabulary: LoadedVocabulary
    made_by: str
    """Engine, device, type of number and version of the library, as far as the text of a seed depends on them."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the API that the target cannot serve, each with the reason."""


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, chat template included. Raises ModelError."""
    with naming_model(folder):
        return quiet_transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)


def load_vocabulary(path: Path) -> tuple[LoadedVocabulary, Sequence[int]]:
    """The tokenizer of a GGUF file without its weights, kept in the same cache, and the tokens that end a completion.

    Raises ModelError.
    """
    metadata = gguf_metadata(path)
    digest = model_digest(path)

    def save(folder: Path) -> None:
        gguf_tokenizer(path, metadata).save_pretrained(folder)

    folder = made_once(digest, "tokenizer", save)
    entries = vocabulary_in(metadata, path)
    vocabulary = LoadedVocabulary(load_tokenizer(folder), digest, entries.digest)
    return vocabulary, end_tokens(metadata)


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


def made_once(digest: bytes, kind: str, make: Callable[[Path], object]) -> Path:
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


def gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> Any:
    """The tokenizer of a GGUF file. Raises ModelError."""
    with naming_model(path):
        tokenizer = converted_tokenizer(quiet_transformers(), metadata)

    if metadata.get("tokenizer.ggml.pre") in DIGITS_APART:
        _split_digits(tokenizer)
    return tokenizer


def end_tokens(metadata: dict[str, Any]) -> list[int]:
    """Tokens that end a completion (end of text, of turn, of message), under the keys that llama.cpp reads."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    tokens = {int(metadata[key]) for key in keys if key in metadata}
    return sorted(tokens)


def _split_digits(tokenizer: Any) -> None:
    """Makes a token of every digit."""
    from tokenizers import Regex, pre_tokenizers

    digits = pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])


@contextmanager
def naming_model(path: Path) -> Iterator[None]:
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
        raise ModelError(f"{path} is corrupt or cannot be used ({kind}: {first_line(error)}).") from error


def first_line(error: Exception) -> str:
    """The beginning of an error's text, at most 200 characters."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return lines[0][:200]


def quiet_transformers() -> Any:
    """The library, without output and network; it reads these variables when it is first imported."""
    for variable in (
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_HUB_DISABLE_TELEMETRY",
    ):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
