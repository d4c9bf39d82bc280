"""`python -m tools.fuzz.corpus`: keeps the shortest input of each decoder for each outcome, beside those that failed.

`make test` replays the file: each input still has its outcome. An input that failed once is kept by `--add`.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import random
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from edgespec_lab.options import number
from tools.fuzz.decoder import mutated, outcome
from tools.fuzz.decoders import decoders

FILE = Path(__file__).with_name("corpus.jsonl")


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input."""

    decoder: str
    outcome: str
    data: str
    """Compressed, in base64."""
    failed: str = ""
    """What it led to before the fix; empty for one that only shows an outcome."""

    @staticmethod
    def of(decoder: str, data: bytes, failed: str = "") -> Kept:
        """With the outcome that it has now."""
        text = base64.b64encode(zlib.compress(data, 9)).decode()
        return Kept(decoder, outcome(decoders()[decoder], data), text, failed)

    @property
    def input(self) -> bytes:
        return zlib.decompress(base64.b64decode(self.data))


def read(file: Path = FILE) -> list[Kept]:
    """What is kept."""
    if file.exists():
        return [msgspec.json.decode(line, type=Kept) for line in file.read_bytes().splitlines()]
    return []


def extended(kept: Iterable[Kept], inputs: int, seed: int) -> list[Kept]:
    """With the shortest of so many inputs of each decoder, and a valid one, for each outcome that none shows yet."""
    known = {(one.decoder, one.outcome): one for one in kept if not one.failed}
    found: dict[tuple[str, str], bytes] = {}
    for name, decoder in decoders().items():
        rng = random.Random(f"{seed}:corpus:{name}")
        tried = (mutated(rng, decoder.samples, decoder.codec) for _ in range(inputs // decoder.cost))
        for data in itertools.chain(decoder.samples[:1], tried):
            key = name, outcome(decoder, data)
            if key not in known and len(data) < len(found.get(key, b" " * (1 << 20))):
                found[key] = data
    fresh = [Kept.of(name, data) for (name, _), data in found.items()]
    return sorted([*kept, *fresh], key=lambda one: (one.decoder, bool(one.failed), one.outcome, one.data))


def main(argv: Sequence[str] | None = None) -> int:
    """Extends the file."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.corpus", description=__doc__)
    parser.add_argument("--inputs", type=number(int, 0, 10**9), default=20_000, help="of each decoder (%(default)s)")
    parser.add_argument("--seed", type=number(int, 0, 10**9), default=1)
    parser.add_argument("--add", nargs=3, metavar=("DECODER", "FILE", "FAILURE"), help="an input that failed once")
    args = parser.parse_args(argv)
    kept = read()
    if args.add:
        name, file, failure = args.add
        kept.append(Kept.of(name, Path(file).read_bytes(), failure))
    kept = extended(kept, args.inputs, args.seed)
    FILE.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in kept))
    print(f"{len(kept)} inputs of {len({one.decoder for one in kept})} decoders")
    return 0


if __name__ == "__main__":
    sys.exit(main())
