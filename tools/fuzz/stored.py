"""Decoders of files: keys, lists of paired machines and API keys, models' headers, configurations, samples."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.auth import FILE_NAME as API_KEYS
from cloud_gateway.auth import Key, KeyRing
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.models.headers import tensor_shapes
from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import schema
from edgespec import parts as worker_parts
from edgespec.core.errors import ClientError, ConfigError, KeyStoreError, ModelError
from edgespec.core.protocol.handshake import rotation
from edgespec.shared import hf_vocabulary, settings, vocabfiles
from edgespec.shared.paired import PairedGateways
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.worker import config as worker_config
from edgespec_lab.survey.sample import Sample, SurveyFileError
from edgespec_lab.survey.sample import read as read_samples
from tools import parts
from tools.fuzz.decoder import JSON, Codec, Decoder
from tools.fuzz.ends import GATEWAY_KEY, HASH, WORKER_KEY

ROOT = Path(__file__).parents[2]
SAFETENSORS = Codec(
    lambda data: json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]),
    lambda value: _tensors(msgspec.json.encode(value)),
)


def worker_settings() -> settings.Section:
    """The defaults of a worker with all parts."""
    return worker_config.schema(worker_parts.all_parts())()


def table() -> dict[str, Decoder]:
    """By name."""
    keys = ServerKeyStore(_folder())
    identity = keys.identity()
    tls = keys.tls_identity().pem.read_bytes()
    pems = [(keys.folder / "identity.key").read_bytes(), tls]
    PairedGateways(keys.folder).add(GATEWAY_KEY.public, HASH, "gw", "gw.example:7443", 1)
    PairedWorkers(keys.folder).add(WORKER_KEY.public, "lab-7", 1, ("lab",))
    (keys.folder / API_KEYS).touch(0o600)
    (keys.folder / API_KEYS).write_bytes(msgspec.json.encode({"keys": [_API_KEY]}))
    ring = KeyRing(keys.folder)
    statements = msgspec.json.encode([rotation(WORKER_KEY, identity)])

    def stored(name: str) -> list[bytes]:
        return [(keys.folder / name).read_bytes()]

    return {
        "identity.key": _file("identity.key", lambda path: _keys(path).identity(), pems, KeyStoreError),
        "tls.pem": _file("tls.pem", lambda path: _keys(path).tls_identity(), pems[::-1], KeyStoreError),
        "rotations.json": _file(
            "rotations.json", lambda path: _keys(path).rotations(), [statements], KeyStoreError, JSON
        ),
        "gateways.json": _file("gateways.json", _all(PairedGateways), stored("gateways.json"), KeyStoreError, JSON),
        "workers.json": _file("workers.json", _all(PairedWorkers), stored("workers.json"), KeyStoreError, JSON),
        "API keys": _file(API_KEYS, _all(KeyRing), stored(API_KEYS), KeyStoreError, JSON),
        "Authorization": Decoder(
            lambda data: ring.check(data.decode("utf-8", "surrogateescape")), [b"Bearer es-abcdefgh-secret"],
            ClientError, cost=8,
        ),
        **{kind: _file(*stored) for kinds in parts.STORED for kind, stored in kinds.items()},
        "survey": _file("samples.jsonl", lambda path: read_samples([path]), [_SAMPLED], SurveyFileError),
        "GGUF file": _file("model.gguf", _gguf, [_GGUF], ModelError),
        "tokenizer.json": _file(
            "tokenizer.json", lambda path: hf_vocabulary.hf_vocabulary(path).digest, _TOKENIZERS, ModelError, JSON
        ),
        "safetensors": _file(
            "model.safetensors", tensor_shapes, [_tensors(json.dumps(_TENSORS).encode())], ModelError, SAFETENSORS
        ),
        "gateway.toml": Decoder(
            lambda data: settings.parse(data.decode(errors="replace"), schema(all_parts()), "gateway.toml"),
            [_TOML, (ROOT / "configs/gateway.toml").read_bytes()[-3000:]], ConfigError, cost=100,
        ),
        "--set": Decoder(
            lambda data: settings.assigned(worker_settings(), [data.decode(errors="replace")]),
            [b"daemon.cpu=[0, 1]", b"owner.idle_s=0.5", b"owner.mode=always"], ConfigError, cost=40,
        ),
    }  # fmt: skip


@functools.cache
def _folder() -> Path:
    """Of this process, removed at its end."""
    folder = tempfile.mkdtemp(prefix="edgespec-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _file(
    name: str,
    read: Callable[[Path], object],
    samples: list[bytes],
    refuses: type[Exception] | tuple[()] = (),
    codec: Codec | None = None,
) -> Decoder:
    """A decoder that reads a file of this name, in a folder of its own."""
    path = _folder() / name / "keys" / name

    def decode(data: bytes) -> object:
        if not path.exists():
            path.parent.mkdir(0o700, parents=True)
            path.touch(0o600)
        path.write_bytes(data)
        return read(path)

    return Decoder(decode, samples, refuses, codec, cost=80)


def _keys(path: Path) -> ServerKeyStore:
    return ServerKeyStore(path.parents[1])


def _all(kind: Callable[[Path], Any]) -> Callable[[Path], object]:
    return lambda path: kind(path.parent).all()


def _gguf(path: Path) -> object:
    try:
        return vocabfiles.gguf_vocabulary(path).digest
    finally:
        vocabfiles.gguf_tensors(path)


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _metadata(*pairs: tuple[bytes, int, bytes]) -> bytes:
    return b"".join(_text(key) + struct.pack("<I", kind) + value for key, kind, value in pairs)


_WORDS = b"".join(map(_text, (b"<s>", b"a", b"\xe2\x96\x81b", b"[PAD3]")))
_GGUF = (
    b"GGUF"
    + struct.pack("<IQQ", 3, 1, 4)
    + _metadata(
        (b"tokenizer.ggml.model", 8, _text(b"llama")),
        (b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 4) + _WORDS),
        (b"tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 0)),
        (b"tokenizer.ggml.scores", 9, struct.pack("<IQ4f", 6, 4, 0, -1, -2, -3)),
    )
    + _text(b"token_embd.weight")
    + struct.pack("<IQQIQ", 2, 4, 8, 0, 0)
    + bytes(64)
)
_TOKENIZERS = [
    json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 3, "content": "<s>"}], "post_processor": {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
    }}).encode(),
    json.dumps({"model": {"vocab": [["a", -1.5], ["b", -2]]}, "post_processor": None}).encode(),
]  # fmt: skip
_TENSORS = {"qkv": {"dtype": "F32", "shape": [3, 4, 8], "data_offsets": [0, 384]}, "__metadata__": {"format": "pt"}}


def _tensors(header: bytes) -> bytes:
    """A file with this header, and as many bytes of weights as `_TENSORS` says."""
    return struct.pack("<Q", len(header)) + header + bytes(384)


_TOML = (
    b'[link]\nport = 7443\n[target]\nmodel = "auto:quantised" # a comment\n[policy]\nprefer = "latency"\nphi = 0.5\n'
)
_API_KEY = Key(
    "abcdefgh",
    "alice",
    1,
    "5a1f",
    hashlib.sha256(b"\x5a\x1fsecret").hexdigest(),
    offload=True,
    groups=("lab", "default"),
)
_SAMPLED = (
    msgspec.json.encode(
        Sample(v=1, at=1.8e9, source="here", endpoint="there", model="m", outcome="ok", status=200, ttft_ms=120.5)
    )
    + b"\n"
)
