"""Makes a target whose pass costs N times as much, with the same tokens: each block N times, N - 1 without effect.

    python -m tools.make_target --blocks 4                 beside the demo's models, for `edgespec demo --target deep`
    python -m tools.make_target --blocks 2 --out DIR

The added blocks have zero output projections (`edgespec/lab/deep_target.py`), so they add exactly zero. Such a target
stands for one that costs more draft steps a pass, as real pairs do; it is not a better model. Written as a safetensors
folder and as a GGUF file, and compared token for token with the original before either appears.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from edgespec.lab import deep_target
from edgespec.lab.models import Reporter
from edgespec.shared import models
from tools import verbs
from tools.options import number


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.make_target", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    blocks = number(int, deep_target.MIN_BLOCKS, deep_target.MAX_BLOCKS)
    parser.add_argument("--blocks", type=blocks, default=4, metavar="N", help="blocks for each one (default: 4)")
    parser.add_argument("--source", type=Path, help="the GGUF to start from (default: the demo's model)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for both (default: beside the demo's models)")
    parser.add_argument("--force", action="store_true", help="make it again when it is there")
    parser.set_defaults(run=make)
    return verbs.run(parser, argv)


def make(options: argparse.Namespace) -> int:
    """Writes both files unless they are there. Raises EdgespecError."""
    source = options.source or models.quantised()
    out = options.out or models.model_dir()
    name = models.deepened_name(source.name, options.blocks)
    if (out / name).is_dir() and (out / f"{name}.gguf").is_file() and not options.force:
        print(f"{out / name} and {name}.gguf are there already")
        return 0
    found = deep_target.make(source, out, options.blocks, Reporter())
    print(f"{out / name} and {name}.gguf: {found.equal_tokens} of {found.tokens} greedy tokens equal,")
    print(
        f"logits at most {found.max_difference:g} (torch, float32) and {found.gguf_max_difference:g} apart (llama.cpp)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
