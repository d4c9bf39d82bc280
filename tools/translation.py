"""`python -m tools.translation PART --json OUT`: a pair of two tokenizers, measured (docs/results/translation.md).

Parts: `agreement`, how often drafts are right, in lockstep (edgespec/lab/pairs.py); `rig`, gateway and worker at 20 ms:
plain decoding, co-located k = 2 with the translated local draft, and `adaptive` with the worker; `peer`, transformers'
universal assisted generation (`assistant_tokenizer`) on the same pair and prompts. Prompts are plain text: questions of
the demo ("chat") and beginnings of programs ("code"), as many of each. Several drafts are compared with the first one:
`--target smollm --drafts smollm permuted` is the control, the same model without and with translation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from edgespec.lab.demo.scene import PROMPTS, TARGETS, make_rig, read_prompts
from edgespec.lab.pairs import measure
from edgespec.llamacpp.tokenizer import translation
from edgespec.shared.models import quantised
from edgespec.shared.vocabfiles import gguf_vocabulary


def permute_tokens(source: Path, out: Path, fixed: int = 512) -> None:
    """Copies a byte-level BPE model; all tokens from `fixed` on get other numbers, in a fixed random order."""
    reader = gguf.GGUFReader(source)
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    order = np.arange(len(tokens))
    np.random.default_rng(1).shuffle(order[fixed:])
    architecture = str(reader.get_field("general.architecture").contents())
    writer = gguf.GGUFWriter(out, architecture, endianess=reader.endianess)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            if len(value) == len(tokens) and field.name != "tokenizer.ggml.merges":
                value = [value[old] for old in order]
            writer.add_key_value(field.name, value, kind, sub_type=field.types[-1])
        else:
            writer.add_key_value(field.name, value, kind)
    data = []
    for tensor in reader.tensors:
        rows = tensor.data[order] if tensor.name in ("token_embd.weight", "output.weight") else tensor.data
        writer.add_tensor_info(tensor.name, rows.shape, rows.dtype, rows.nbytes, tensor.tensor_type)
        data.append(np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for rows in data:
        writer.write_tensor_data(rows)
    writer.close()


CODE = (
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n',
    "import csv\n\n\ndef read_rows(path):\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def is_prime(n):\n    if n < 2:\n        return False\n",
    "# Sort a list of dictionaries by a key\ndef sort_by(rows, key):\n",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "function debounce(callback, delay) {\n  let timer = null;\n",
    "SELECT customers.name, COUNT(orders.id) AS orders\nFROM customers\n",
    "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test_push(self):\n",
    "def binary_search(items, wanted):\n    low, high = 0, len(items) - 1\n",
)
ARMS: dict[str, dict[str, Any]] = {
    "plain": {"policy": "plain"},
    "colocated_k2": {"policy": "colocated", "k": 2, "offload": "never"},
    "adaptive": {"policy": "adaptive"},
}
Drafts = Mapping[str, Path]
Rows = Iterator[dict[str, Any]]


def texts(count: int) -> dict[str, list[str]]:
    """So many prompts of each kind, as far as there are."""
    return {"chat": read_prompts(PROMPTS, count, 1), "code": [*CODE[:count]]}


def agreement(target: Path, drafts: Drafts, options: argparse.Namespace) -> Rows:
    for kind, prompts in texts(options.prompts).items():
        for name, draft in drafts.items():
            pair = translation(target, draft, gguf_vocabulary(draft).digest)
            found = measure(target, draft, prompts, options.tokens, pair.translator if pair else None)
            yield {
                "draft": name, "kind": kind, "tokens": found.tokens, "rounds": found.rounds, "right": found.right,
                "by_position": found.by_position, "accepted_chain": found.in_chain,
                "accepted_tree": found.in_tree / found.rounds, "rounds_with_draft": found.drafted / found.rounds,
                "host_ms": found.host_s / found.tokens * 1e3, "ms_per_token": found.draft_s / found.tokens * 1e3,
            }  # fmt: skip


def rig(target: Path, drafts: Drafts, options: argparse.Namespace) -> Rows:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        rigs = {}
        for name, draft in drafts.items():
            made = make_rig(Path(folder) / name, str(target), str(draft), 20.0, engine="llamacpp", text=True)
            rigs[name] = closing.enter_context(made)
            for _, step in made.steps():
                step()
        for kind, prompts in texts(options.prompts).items():
            for number, prompt in enumerate(prompts):
                cases = [(name, arm) for name in rigs for arm in ARMS]
                for name, arm in [*cases[number % len(cases) :], *cases[: number % len(cases)]]:
                    answer = rigs[name].chat(prompt, options.tokens, ignore_eos=True, **ARMS[arm])
                    usage = answer["usage"]["edgespec"]
                    yield {
                        "draft": name, "kind": kind, "prompt": number, "arm": arm,
                        "ms_per_token": usage["timings_ms"]["decode"] / options.tokens,
                        "total_ms_per_token": usage["timings_ms"]["total"] / options.tokens,
                        "rounds": usage["rounds"], "accepted": usage["accepted"],
                        "text": answer["choices"][0]["message"]["content"],
                    }  # fmt: skip


def peer(target: Path, drafts: Drafts, options: argparse.Namespace) -> Rows:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    loaded = [
        make.from_pretrained(path.parent, gguf_file=path.name, **more)
        for path in (target, *drafts.values())
        for make, more in ((AutoModelForCausalLM, {"dtype": torch.float32}), (AutoTokenizer, {}))
    ]
    big, its, small, own = loaded
    forward, passes = big.forward, list[int]()

    def counted(*given: Any, **named: Any) -> Any:
        passes.append(1)
        return forward(*given, **named)

    big.forward = counted
    assisted = {"assistant_model": small, "tokenizer": its, "assistant_tokenizer": own}
    for number, (kind, prompt) in enumerate(
        (kind, one) for kind, many in texts(options.prompts).items() for one in many
    ):
        inputs = its(prompt, return_tensors="pt")
        for arm, more in (("plain", {}), ("assisted", assisted)):
            passes.clear()
            began = time.perf_counter()
            limits = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "do_sample": False}
            output = big.generate(**inputs, **limits, **more)[0][inputs["input_ids"].shape[1] :]
            spent = time.perf_counter() - began
            made = {"tokens": len(output), "passes": len(passes), "ms_per_token": spent / len(output) * 1e3}
            yield {"kind": kind, "prompt": number, "arm": arm, **made, "text": its.decode(output)}


PARTS: dict[str, Callable[[Path, Drafts, argparse.Namespace], Rows]] = {
    "agreement": agreement, "rig": rig, "peer": peer,
}  # fmt: skip
SAME = ("draft", "arm", "kind", "prompt")
"""What two rows have in common that are compared, all but one."""


def medians(rows: Sequence[dict[str, Any]], by: str, base: str, of: str = "ms_per_token") -> dict[str, float]:
    """Ratios to the row in which `by` is `base`; their median over the prompts of each draft, arm and kind."""
    known = {tuple(row.get(name) for name in SAME): row[of] for row in rows if of in row and by in row}
    ratios: dict[str, list[float]] = {}
    for at, value in known.items():
        first = known[tuple(base if name == by else one for name, one in zip(SAME, at))]
        ratios.setdefault(" ".join(filter(None, at[:-1])), []).append(value / first)
    return {name: statistics.median(found) for name, found in ratios.items()}


def summary(rows: Sequence[dict[str, Any]], first: str) -> dict[str, dict[str, float]]:
    """Times over plain decoding's; times and accepted tokens over the first draft's."""
    return {
        "time_of_plain": medians(rows, "arm", "plain"),
        "time_of_first_draft": medians(rows, "draft", first),
        "accepted_of_first_draft": medians(rows, "draft", first, "accepted_tree"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.translation", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--target", choices=TARGETS, default="gemma")
    parser.add_argument("--drafts", nargs="+", default=["smollm"], help="smollm, gemma, permuted, or GGUF files")
    parser.add_argument("--prompts", type=int, default=10, help="of each kind; 10 at most")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        permuted = Path(folder) / "permuted.gguf"
        if "permuted" in options.drafts:
            permute_tokens(quantised(), permuted)
        known = {name: permuted if name == "permuted" else TARGETS[name]() if name in TARGETS else Path(name)
                 for name in options.drafts}  # fmt: skip
        for row in PARTS[options.part](TARGETS[options.target](), known, options):
            rows.append(row)
            print(json.dumps({name: value for name, value in row.items() if name != "text"}), flush=True)
    found = {"part": options.part, "target": options.target, **summary(rows, options.drafts[0])}
    print(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
