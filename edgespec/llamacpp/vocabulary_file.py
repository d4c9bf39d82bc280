"""A tokenizer that came from elsewhere, as a GGUF file without weights, which llama.cpp can read.

A child process reads the file first: llama.cpp ends its process where it finds a vocabulary to be impossible.
"""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgespec.core.errors import ModelError
from edgespec.core.protocol.tokenizer_file import TokenizerFile, unpacked
from edgespec.llamacpp.tokenizer import Translation, translation
from edgespec.shared.folders import cache_dir

TRIAL_S = 60.0


def kept(digest: bytes) -> bytes | None:
    """The file of this SHA-256 as it was fetched before; None if it is not there, or no longer the same."""
    try:
        data = _place(digest).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).digest() == digest else None


def keep(data: bytes) -> None:
    """Stores it by its SHA-256. Raises OSError."""
    place = _place(hashlib.sha256(data).digest())
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".part-", delete=False) as part:
        part.write(data)
    Path(part.name).replace(place)


def translation_by(data: bytes, draft: Path, drafts_digest: bytes) -> Translation | None:
    """As `translation`, from the target's tokenizer as a gateway sent it. Raises ModelError."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(b"".join(_gguf(unpacked(data))))
        file.flush()
        trial = [sys.executable, "-m", "edgespec.llamacpp.vocabulary_file", file.name]
        try:
            done = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S, check=False)
        except subprocess.TimeoutExpired:
            raise ModelError("llama.cpp does not come to an end with the target's tokenizer") from None
        if done.returncode:
            raise ModelError("llama.cpp cannot read the target's tokenizer")
        return translation(Path(file.name), draft, drafts_digest)


def _place(digest: bytes) -> Path:
    return cache_dir() / "tokenizers" / digest.hex()


def _gguf(file: TokenizerFile) -> Iterator[bytes]:
    """GGUF version 3 (ggml-org/ggml, docs/gguf.md) with no tensors."""
    pairs = [("general.architecture", "llama")]
    pairs += [(f"tokenizer.ggml.{name}", getattr(file, name)) for name in file.__struct_fields__]
    known = [(name, value) for name, value in pairs if value is not None]
    yield b"GGUF" + struct.pack("<IQQ", 3, 0, len(known))
    for name, value in known:
        yield _text(name.encode())
        match value:
            case bool():
                yield struct.pack("<I?", 7, value)
            case int():
                yield struct.pack("<II", 4, value)
            case str():
                yield struct.pack("<I", 8) + _text(value.encode())
            case list():
                kind = 8 if isinstance(value[0], bytes) else 6 if isinstance(value[0], float) else 5
                yield struct.pack("<IIQ", 9, kind, len(value))
                code = {6: "f", 5: "i"}.get(kind)
                yield struct.pack(f"<{len(value)}{code}", *value) if code else b"".join(map(_text, value))


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


if __name__ == "__main__":
    from edgespec.llamacpp.tokenizer import GgufTokenizer

    GgufTokenizer(Path(sys.argv[1])).encode("A trial: 1 \u00e9\U0001f600\n\n  \t<b>".encode())
