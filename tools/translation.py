"""`python -m tools.translation PART --json OUT`: a pair of two tokenizers, measured (docs/results/translation.md).

Parts: `agreement`, how often drafts are right, in lockstep (edgespec/lab/pairs.py); `rig`, gateway and worker at 20 ms:
plain decoding, co-located k = 2 with the translated local draft, and `adaptive` with the worker; `peer`, transformers'
universal assisted generation (`assistant_tokenizer`) on the same pair and prompts. Prompts are plain text: half of them
questions of the demo, half the beginnings of programs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgespec.lab.demo.scene import PROMPTS, TARGETS, make_rig, read_prompts
from edgespec.lab.pairs import measure
from edgespec.llamacpp.tokenizer import translation
from edgespec.shared.vocabfiles import gguf_vocabulary

CODE = (
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n',
    "import csv\n\n\ndef read_rows(path):\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def is_prime(n):\n    if n < 2:\n        return False\n",
    "# Sort a list of dictionaries by a key\ndef sort_by(rows, key):\n",
)
ARMS: dict[str, dict[str, Any]] = {
    "plain": {"policy": "plain"},
    "colocated_k2": {"policy": "colocated", "k": 2, "offload": "never"},
    "adaptive": {"policy": "adaptive"},
}


def texts(count: int) -> list[str]:
    """So many prompts, of both kinds in turns."""
    chat = read_prompts(PROMPTS, (count + 1) // 2, 1)
    return [one for pair in zip(chat, CODE) for one in pair][:count]


def agreement(target: Path, draft: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    pair = translation(target, draft, gguf_vocabulary(draft).digest)
    found = measure(target, draft, texts(options.prompts), options.tokens, pair.translator if pair else None)
    yield {
        "tokens": found.tokens, "rounds": found.rounds, "right": found.right, "by_position": found.by_position,
        "accepted_chain": found.in_chain, "accepted_tree": found.in_tree / found.rounds,
        "rounds_with_draft": found.drafted / found.rounds, "host_ms_per_token": found.host_s / found.tokens * 1e3,
    }  # fmt: skip


def rig(target: Path, draft: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        make_rig(Path(folder), str(target), str(draft), 20.0, engine="llamacpp", text=True) as made,
    ):
        for _, step in made.steps():
            step()
        for number, prompt in enumerate(texts(options.prompts)):
            for arm in [*ARMS][number % 3 :] + [*ARMS][: number % 3]:
                answer = made.chat(prompt, options.tokens, ignore_eos=True, **ARMS[arm])
                usage = answer["usage"]["edgespec"]
                yield {
                    "prompt": number, "arm": arm, "text": answer["choices"][0]["message"]["content"],
                    "ms_per_token": usage["timings_ms"]["decode"] / options.tokens,
                    "total_ms_per_token": usage["timings_ms"]["total"] / options.tokens,
                    "rounds": usage["rounds"], "accepted": usage["accepted"],
                }  # fmt: skip


def peer(target: Path, draft: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    loaded = [
        make.from_pretrained(path.parent, gguf_file=path.name, **more)
        for path in (target, draft)
        for make, more in ((AutoModelForCausalLM, {"dtype": torch.float32}), (AutoTokenizer, {}))
    ]
    big, its, small, own = loaded
    forward, passes = big.forward, list[int]()

    def counted(*given: Any, **named: Any) -> Any:
        passes.append(1)
        return forward(*given, **named)

    big.forward = counted
    assisted = {"assistant_model": small, "tokenizer": its, "assistant_tokenizer": own}
    for number, prompt in enumerate(texts(options.prompts)):
        inputs = its(prompt, return_tensors="pt")
        for arm, more in (("plain", {}), ("assisted", assisted)):
            passes.clear()
            began = time.perf_counter()
            limits = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "do_sample": False}
            output = big.generate(**inputs, **limits, **more)[0][inputs["input_ids"].shape[1] :]
            spent = time.perf_counter() - began
            made = {"tokens": len(output), "passes": len(passes), "ms_per_token": spent / len(output) * 1e3}
            yield {"prompt": number, "arm": arm, **made, "text": its.decode(output)}


PARTS: dict[str, Callable[[Path, Path, argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "agreement": agreement, "rig": rig, "peer": peer,
}  # fmt: skip


def medians(rows: Sequence[dict[str, Any]], base: str = "plain") -> dict[str, float]:
    """Of each arm's time over plain decoding's on the same prompt."""
    times = {(row["arm"], row["prompt"]): row["ms_per_token"] for row in rows if "arm" in row}
    arms = dict.fromkeys(arm for arm, _ in times)
    ratios = {arm: [ms / times[base, at] for (one, at), ms in times.items() if one == arm] for arm in arms}
    return {arm: statistics.median(found) for arm, found in ratios.items() if found}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.translation", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--target", choices=TARGETS, default="gemma")
    parser.add_argument("--draft", default="smollm", help="smollm, gemma, or a GGUF file")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    draft = TARGETS[options.draft]() if options.draft in TARGETS else Path(options.draft)
    rows = []
    for row in PARTS[options.part](TARGETS[options.target](), draft, options):
        rows.append(row)
        print(json.dumps({name: value for name, value in row.items() if name != "text"}), flush=True)
    summary = {"part": options.part, "target": options.target, "draft": options.draft, "medians": medians(rows)}
    print(json.dumps(summary))
    if options.json:
        options.json.write_text(json.dumps(summary | {"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
