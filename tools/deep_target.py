"""`python -m tools.deep_target`: a target whose pass costs more.

Each block stands N times, of which N - 1 add exactly zero to the residual stream.
Added blocks whose output projections of attention and feed-forward are zero leave the function unchanged; LLaMA Pro
initialises the blocks that it adds so (arXiv 2401.02415). The tokens stay, a pass takes about N times as long. It
represents a target that costs more draft steps, and is not a better model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rich.console import Console

from edgespec.core.errors import ConfigError, ModelError
from edgespec.lab.fetch import require_space
from edgespec.lab.gguf_layers import Layer, block_count, copy_layers
from edgespec.shared import models
from edgespec.shared.procstat import available_memory
from tools import verbs

if TYPE_CHECKING:
    from tools.deep_check import Comparison

MIN_BLOCKS, MAX_BLOCKS = 2, 16
"""16 blocks each make a pass cost what a model of 3 billion parameters costs; more would not fit small machines."""
ZERO_GGUF = frozenset(("attn_output.weight", "attn_output.bias", "ffn_down.weight", "ffn_down.bias"))
_BLOCK = re.compile(r"^(.*\blayers\.)(\d+)\.(.+)$")
_OUTPUTS = ("self_attn.o_proj.", "mlp.down_proj.")
_CHUNK = 1 << 24
BYTES_EACH = 12
"""Memory to check and load a deep target, per byte of a four-bit source and block: float32 takes 8, and a margin."""


def make(source: Path, out: Path, blocks: int) -> Comparison:
    """Makes both forms of the deep target of a GGUF file, in the folder `out`; returns how they compare with `source`.

    `X.gguf` gives the folder `X.deepN`, safetensors in float32 which the gateway loads in any type, and `X.deepN.gguf`.
    They appear only when every token is that of `source` and the tokenizer digest too. Raises ModelError otherwise,
    and where memory or disk is short; ConfigError for a bad number of blocks.
    """
    from cloud_gateway.models.target_model.load import load
    from tools.deep_check import compare  # numpy and more, which `edgespec --help` must not wait for

    _check(blocks)
    require_memory(memory_bytes(source, blocks), f"{source.name} with {blocks} blocks each")
    name = deepened_name(source.name, blocks)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".target-", dir=out) as scratch:
            folder, gguf = Path(scratch) / name, Path(scratch) / f"{name}.gguf"
            deepen_gguf(source, gguf, blocks)
            plain = load(source, "float32", "cpu").folder
            deepen_folder(plain, folder, blocks)
            found = compare(source, plain, gguf, folder)
            if not found.same:
                raise ModelError(f"The deep target of {source.name} is not the same function ({found}); report this.")
            for made in (gguf, folder):
                shutil.rmtree(out / made.name, ignore_errors=True)
                made.replace(out / made.name)
    except OSError as error:
        raise ModelError(f"The deep target cannot be written to {out}: {error.strerror or error}.") from error
    return found


def deepened_name(file: str, blocks: int) -> str:
    """The name of a deep target: `X.gguf` becomes `X.deep4`."""
    return f"{file.removesuffix('.gguf')}.deep{blocks}"


def deepened(blocks: int = 4, *, gguf: bool = False) -> Path:
    """The deep target of the demo's model: its folder, or its GGUF file. Raises ModelError when it is not there."""
    name = deepened_name(models.QUANTISED.file, blocks)
    path = models.model_dir() / (f"{name}.gguf" if gguf else name)
    if not (path if gguf else path / "model.safetensors").is_file():
        raise ModelError(f"{path} is not there: run `python -m tools.deep_target --blocks {blocks}`.")
    return path


def target_model(options: argparse.Namespace, console: Console) -> Path:
    """The target of `options.target`, `plain` or `deep`, made when it is missing. Raises ModelError, ConfigError."""
    source, gguf = models.quantised(), options.engine == "llamacpp"
    if options.target == "plain":
        return source
    require_memory(memory_bytes(source, options.blocks), "The deep target")
    with contextlib.suppress(ModelError):
        return deepened(options.blocks, gguf=gguf)
    console.print("Making the deep target and comparing its tokens (a minute)")
    found = make(source, models.model_dir(), options.blocks)
    console.print(f"[green]✓[/] Made the deep target: {found.equal_tokens} of {found.tokens} tokens equal")
    return deepened(options.blocks, gguf=gguf)


def require_memory(needed: int, what: str) -> None:
    """Raises ModelError where fewer than `needed` bytes of memory are available without swapping."""
    free = available_memory()
    if free < needed:
        raise ModelError(
            f"{what} needs {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are available; "
            "end other programs or choose fewer blocks."
        )


def memory_bytes(source: Path, blocks: int) -> int:
    """What loading and checking the deep target of a four-bit GGUF file takes at most. Raises ModelError."""
    try:
        return BYTES_EACH * blocks * source.stat().st_size
    except OSError as error:
        raise ModelError(f"{source} cannot be read ({error.strerror}); name a GGUF file.") from error


def deepen_gguf(source: Path, out: Path, blocks: int) -> None:
    """Writes the GGUF file `source` with `blocks` blocks for each one to `out`; weights keep their formats.

    Raises ModelError when `source` is no usable GGUF or the disk is short, ConfigError for a bad number of blocks.
    """
    _check(blocks)
    require_space(out.parent, blocks * source.stat().st_size)
    layers = [Layer(old, zeroed=copy > 0) for old in range(block_count(source)) for copy in range(blocks)]
    copy_layers(source, out, layers, ZERO_GGUF)


def deepen_folder(source: Path, out: Path, blocks: int) -> None:
    """Writes a safetensors folder with `blocks` blocks for each one to `out`, which must not exist.

    Bytes are copied from file to file, so memory stays at some megabytes whatever the model's size. Raises ModelError
    for a model that is not of Llama's block structure, and when the disk is short.
    """
    _check(blocks)
    parts = [part for file in sorted(source.glob("*.safetensors")) for part in _parts(file)]
    made = list(_deepened(parts, blocks, source))
    require_space(out.parent, sum(part.size for part in made))
    config = json.loads((source / "config.json").read_text())
    ignored = shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json", "edgespec.json")
    shutil.copytree(source, out, ignore=ignored)
    (out / "config.json").write_text(json.dumps(_config(config, blocks), indent=2) + "\n")
    _write(out / "model.safetensors", made)


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of a safetensors file: where its bytes lie, or None where they are zero."""

    name: str
    dtype: str
    shape: list[int]
    size: int
    file: Path | None
    start: int

    def copied(self, name: str, *, zero: bool) -> _Part:
        return _Part(name, self.dtype, self.shape, self.size, None if zero else self.file, self.start)


def _check(blocks: int) -> None:
    if not MIN_BLOCKS <= blocks <= MAX_BLOCKS:
        raise ConfigError(f"--blocks is {blocks}, but must be a number from {MIN_BLOCKS} to {MAX_BLOCKS}.")


def _parts(file: Path) -> Iterator[_Part]:
    """The tensors of one file; the format is eight bytes of header length, a JSON header, and the data."""
    with file.open("rb") as stream:
        try:
            length = struct.unpack("<Q", stream.read(8))[0]
            header = json.loads(stream.read(length))
        except (struct.error, ValueError, MemoryError, OverflowError) as error:
            raise ModelError(f"{file} is no whole safetensors file: {error}.") from error
    for name, about in header.items():
        if name != "__metadata__":
            start, end = about["data_offsets"]
            yield _Part(name, about["dtype"], about["shape"], end - start, file, 8 + length + start)


def _deepened(parts: list[_Part], blocks: int, source: Path) -> Iterator[_Part]:
    outputs = 0
    for part in parts:
        block = _BLOCK.match(part.name)
        if block is None:
            yield part
            continue
        output = block[3].startswith(_OUTPUTS)
        outputs += output
        for copy in range(blocks):
            name = f"{block[1]}{int(block[2]) * blocks + copy}.{block[3]}"
            yield part.copied(name, zero=output and copy > 0)
    numbers = {int(block[2]) for part in parts if (block := _BLOCK.match(part.name))}
    if not numbers or outputs < len(_OUTPUTS) * len(numbers):
        raise ModelError(f"{source} has no blocks with o_proj and down_proj: choose a model built as Llama's.")


def _config(config: dict[str, Any], blocks: int) -> dict[str, Any]:
    count = config["num_hidden_layers"]
    repeated = {
        key: [item for item in value for _ in range(blocks)]
        for key, value in config.items()
        if isinstance(value, list) and len(value) == count and key == "layer_types"
    }
    return config | repeated | {"num_hidden_layers": count * blocks}


def _write(path: Path, parts: list[_Part]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    done = 0
    for part in parts:
        header[part.name] = {
            "dtype": part.dtype, "shape": part.shape, "data_offsets": [done, done + part.size]
        }  # fmt: skip
        done += part.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of eight
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            _copy(part, out)
        out.truncate()  # the last tensor may be a hole


def _copy(part: _Part, out: BinaryIO) -> None:
    if part.file is None:
        out.seek(part.size, 1)  # a hole, which reads as zeros
        return
    with part.file.open("rb") as source:
        source.seek(part.start)
        left = part.size
        while left:
            chunk = source.read(min(left, _CHUNK))
            if not chunk:
                raise ModelError(f"{part.file} ends too early; fetch or convert it again.")
            left -= out.write(chunk)


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the deep target of a model; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.deep_target", description=__doc__)
    parser.add_argument("--blocks", type=int, default=4, metavar="N", help="blocks for each one, of which one works")
    parser.add_argument("--source", type=Path, metavar="GGUF", help="what to start from (default: the demo's model)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for both forms (default: that of the models)")
    parser.set_defaults(run=_make)
    return verbs.run(parser, argv)


def _make(options: argparse.Namespace) -> int:
    source, out = options.source or models.quantised(), options.out or models.model_dir()
    print(f"{make(source, out, options.blocks)}: {out / deepened_name(source.name, options.blocks)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
