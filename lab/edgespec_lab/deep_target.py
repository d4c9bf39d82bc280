"""`python -m edgespec_lab.deep_target`: a target whose pass costs more.

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
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from edgespec.core.errors import ModelError
from edgespec.models.drafts import Layer, block_count, copy_layers
from edgespec.models.space import require_space
from edgespec.shared import models
from edgespec.shared.procstat import available_memory
from edgespec_lab import verbs
from edgespec_lab.options import number

MIN_BLOCKS = 2
MAX_BLOCKS = 16
"""16 blocks each make a pass cost what a model of 3 billion parameters costs; more would not fit small machines."""
BLOCKS = number(int, MIN_BLOCKS, MAX_BLOCKS)
"""The type of an option for their number."""
ZERO_GGUF = frozenset(("attn_output.weight", "attn_output.bias", "ffn_down.weight", "ffn_down.bias"))
_BLOCK = re.compile(r"^(.*\blayers\.)(\d+)\.(.+)$")
_OUTPUTS = ("self_attn.o_proj.", "mlp.down_proj.")
PROMPTS = (
    "Name three uses of a paper clip, and say which one you like best.",
    "What is 17 times 23? Explain each step.",
    "Write two lines of a poem about rain in March.",
)
TOKENS = 24
"""Greedy tokens of each prompt."""
MAX_ROWS = 64
"""Rows of one llama.cpp decode that the check asks logits of."""
Logits = NDArray[np.float32]


Weights = NDArray[Any]
BYTES_EACH = 12
"""Memory to check and load a deep target, per byte of a four-bit source and block: float32 takes 8, and a margin."""


def make(source: Path, out: Path, blocks: int) -> Comparison:
    """Makes both forms of the deep target of a GGUF file, in the folder `out`; returns how they compare with `source`.

    `X.gguf` gives the folder `X.deepN`, safetensors in float32 which the gateway loads in any type, and `X.deepN.gguf`.
    They appear only when every token is that of `source` and the tokenizer digest too. Raises ModelError otherwise,
    and where memory or disk is short.
    """
    from cloud_gateway.parts.torch_engine.load import load

    require_memory(memory_bytes(source, blocks), f"{source.name} with {blocks} blocks each")
    name = deepened_name(source.name, blocks)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".target-", dir=out) as scratch:
            folder = Path(scratch) / name
            gguf = Path(scratch) / f"{name}.gguf"
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
        raise ModelError(f"{path} is not there: run `python -m edgespec_lab.deep_target --blocks {blocks}`.")
    return path


def target_model(options: argparse.Namespace, console: Console) -> Path:
    """The target of `options.target`, `plain` or `deep`, made when it is missing. Raises ModelError."""
    source = models.quantised()
    gguf = options.engine == "llamacpp"
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

    Raises ModelError when `source` is no usable GGUF or the disk is short.
    """
    require_space(out.parent, blocks * source.stat().st_size)
    layers = [Layer(old, zeroed=copy > 0) for old in range(block_count(source)) for copy in range(blocks)]
    copy_layers(source, out, layers, ZERO_GGUF)


def deepen_folder(source: Path, out: Path, blocks: int) -> None:
    """Writes a safetensors folder in float32 with `blocks` blocks for each one to `out`, which must not exist.

    Raises ModelError for a model that is not of Llama's block structure, and when the disk is short.
    """
    from safetensors.numpy import load_file, save_file

    plain = {name: weights for file in source.glob("*.safetensors") for name, weights in load_file(file).items()}
    made = _deepened(plain, blocks, source)
    require_space(out.parent, sum(weights.nbytes for weights in made.values()))
    config = json.loads((source / "config.json").read_text())
    ignored = shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json", "edgespec.json")
    shutil.copytree(source, out, ignore=ignored)
    (out / "config.json").write_text(json.dumps(_config(config, blocks), indent=2) + "\n")
    save_file(made, out / "model.safetensors", metadata={"format": "pt"})


def _deepened(plain: Mapping[str, Weights], blocks: int, source: Path) -> dict[str, Weights]:
    made: dict[str, Weights] = {}
    outputs = 0
    numbers = set[int]()
    for name, weights in plain.items():
        block = _BLOCK.match(name)
        if block is None:
            made[name] = weights
            continue
        output = block[3].startswith(_OUTPUTS)
        number = int(block[2])
        outputs += output
        numbers.add(number)
        for copy in range(blocks):
            added = np.zeros_like(weights) if output and copy else weights
            made[f"{block[1]}{number * blocks + copy}.{block[3]}"] = added
    if not numbers or outputs < len(_OUTPUTS) * len(numbers):
        raise ModelError(f"{source} has no blocks with o_proj and down_proj: choose a model built as Llama's.")

    return made


def _config(config: dict[str, Any], blocks: int) -> dict[str, Any]:
    count = config["num_hidden_layers"]
    repeated = {
        key: [item for item in value for _ in range(blocks)]
        for key, value in config.items()
        if isinstance(value, list) and len(value) == count and key == "layer_types"
    }
    return config | repeated | {"num_hidden_layers": count * blocks}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, and how far apart the logits were at most."""

    tokens: int
    equal_tokens: int
    max_difference: float
    """Largest absolute difference of a float32 logit in torch."""
    gguf_max_difference: float
    """The same in llama.cpp, on the formats of the file."""
    same_tokenizer: bool

    @property
    def same(self) -> bool:
        """Every token and the tokenizer's digest."""
        return self.tokens == self.equal_tokens and self.same_tokenizer


def compare(plain_gguf: Path, plain: Path, deep_gguf: Path, deep: Path) -> Comparison:
    """Greedy completions of PROMPTS by both, in torch (folders, float32) and llama.cpp (GGUF files)."""
    from edgespec.shared.hf_vocabulary import hf_vocabulary
    from edgespec.shared.vocabfiles import gguf_vocabulary

    digests = {gguf_vocabulary(plain_gguf).digest, gguf_vocabulary(deep_gguf).digest, hf_vocabulary(deep).digest}
    expected, prompts = _greedy(plain, None)
    found, _ = _greedy(deep, expected)
    rows = [[*prompt, *(int(np.argmax(row)) for row in logits)][:MAX_ROWS] for prompt, logits in zip(prompts, expected)]
    ggufs = [_llama_logits(path, rows) for path in (plain_gguf, deep_gguf)]
    pairs = list(zip(_flat(expected), _flat(found), strict=True)) + list(zip(_flat(ggufs[0]), _flat(ggufs[1])))
    return Comparison(
        tokens=len(pairs),
        equal_tokens=sum(int(np.argmax(a)) == int(np.argmax(b)) for a, b in pairs),
        max_difference=_difference(expected, found),
        gguf_max_difference=_difference(*ggufs),
        same_tokenizer=len(digests) == 1,
    )


def _greedy(folder: Path, follow: Sequence[Logits] | None) -> tuple[list[Logits], list[list[int]]]:
    """Logits after each emitted token, [TOKENS, vocab] for each prompt, one token a pass; and the prompts' tokens.

    With `follow`, the tokens taken are those of these logits, so that one difference does not change all that follow.
    """
    import torch

    from cloud_gateway.models.text import Text
    from cloud_gateway.parts.torch_engine.load import load

    loaded = load(folder, "float32", "cpu")
    text = Text(loaded.tokenizer)
    prompts = [text.render_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    for weight in loaded.model.parameters():  # a mapped file's weights lie at odd addresses, where sums are split
        weight.data = weight.data.clone()  # differently, in the last bits; so do several threads
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            followed: list[Logits | None] = list(follow) if follow else [None] * len(prompts)
            return [_one(loaded.model, *one) for one in zip(prompts, followed, strict=True)], prompts
    finally:
        torch.set_num_threads(threads)


def _one(model: Any, prompt: list[int], follow: Logits | None) -> Logits:
    import torch

    rows = []
    cache = None
    tokens = prompt
    for step in range(TOKENS):
        out = model(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1].numpy())
        tokens = [int(np.argmax(rows[-1] if follow is None else follow[step]))]

    return np.stack(rows)


def _llama_logits(path: Path, prompts: Sequence[Sequence[int]]) -> list[Logits]:
    """Logits after each token of each sequence, in llama.cpp."""
    from edgespec.llamacpp.context import Context, Row

    context = Context(path, cells=MAX_ROWS, sequences=MAX_ROWS, batch=MAX_ROWS, threads=1)
    found = []
    for tokens in prompts:
        context.trim(0, 0)
        context.decode([Row(token, place, (0,), wants_logits=True) for place, token in enumerate(tokens)])
        found.append(np.stack([context.logits(i).copy() for i in range(len(tokens))]))
    context.close()
    return found


def _flat(logits: Sequence[Logits]) -> list[Logits]:
    return [row for one in logits for row in one]


def _difference(one: Sequence[Logits], other: Sequence[Logits]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(one, other, strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the deep target of a model; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m edgespec_lab.deep_target", description=__doc__)
    parser.add_argument("--blocks", type=BLOCKS, default=4, metavar="N", help="blocks for each one, of which one works")
    parser.add_argument("--source", type=Path, metavar="GGUF", help="what to start from (default: the demo's model)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for both forms (default: that of the models)")
    parser.set_defaults(run=_make)
    return verbs.run(parser, argv)


def _make(options: argparse.Namespace) -> int:
    source = options.source or models.quantised()
    out = options.out or models.model_dir()
    print(f"{make(source, out, options.blocks)}: {out / deepened_name(source.name, options.blocks)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
