"""Records real models for the simulator: what the target says at every position, and what the drafts would have said.

The target answers every prompt greedily; each draft, made by leaving layers out of the target, then reads prompt and
answer in one pass, so what is kept is its guess after the target's own tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.sim.recording import RANKS, SHIPPED, Guesses, Recording, save

DRAFTS = "14;10;8,16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tools.sim record`."""
    parser.add_argument("--out", type=Path, default=SHIPPED, help="file to write (default: the shipped recording)")
    parser.add_argument("--model", type=Path, help="GGUF file of the target (default: the demo's)")
    parser.add_argument("--prompts", type=Path, help="JSON lines with `prompt` or `turns` (default: 48 of our own)")
    parser.add_argument("--limit", type=int, default=48, help="most prompts")
    parser.add_argument("--max-tokens", type=int, default=160, help="longest answer")
    parser.add_argument("--drafts", default=DRAFTS, help=f"layers to leave out; drafts divided by ';' ({DRAFTS})")


def run(options: argparse.Namespace) -> int:
    """Records and writes; returns 0."""
    from edgespec import models

    prompts = _prompts(options.prompts)[: options.limit]
    dropped = [tuple(int(layer) for layer in draft.split(",")) for draft in options.drafts.split(";")]
    recording = record(options.model or models.quantised(), prompts, dropped, options.max_tokens)
    save(options.out, recording)
    for name in recording.drafts:
        print(f"{name:24} top-1 {recording.match(name, 1):.3f}  top-2 {recording.match(name, 2):.3f}")
    print(f"{len(recording.targets)} positions in {options.out.stat().st_size / 1e6:.2f} MB: {options.out}")
    return 0


def _prompts(path: Path | None) -> list[str]:
    source = path or Path(__file__).parent / "prompts.jsonl"
    rows = [json.loads(line) for line in source.read_text().splitlines() if line.strip()]
    return [row["prompt"] if "prompt" in row else row["turns"][0] for row in rows]


def record(model: Path, prompts: Sequence[str], dropped: Sequence[Sequence[int]], max_tokens: int) -> Recording:
    """Runs the models, one thread, fp32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    target: Any = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
    layers = list(target.model.layers)
    kept = {draft_name(gone): [i for i in range(len(layers)) if i not in gone] for gone in dropped}
    rows: dict[str, list[Any]] = {"tokens": [], "entropies": [], "starts": []}
    drafts: dict[str, list[Any]] = {name: [] for name in kept}
    began = time.perf_counter()
    for number, prompt in enumerate(prompts, 1):
        chat = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            out = target.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False,
                output_logits=True, return_dict_in_generate=True, pad_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
            answer = out.sequences[0, ids.shape[1] :]
            rows["starts"].append(len(rows["tokens"]))
            rows["tokens"] += answer.tolist()
            rows["entropies"] += [float(_entropy(logits[0])) for logits in out.logits]
            for name, which in kept.items():
                target.model.layers = torch.nn.ModuleList(layers[i] for i in which)
                logits = target(out.sequences, use_cache=False).logits[0, ids.shape[1] - 1 : -1]
                drafts[name].append(_best(logits))
            target.model.layers = torch.nn.ModuleList(layers)
        print(f"{number}/{len(prompts)} prompts, {len(rows['tokens'])} positions, {time.perf_counter() - began:.0f} s")
    return Recording(
        np.array(rows["tokens"], np.uint32),
        np.array(rows["entropies"], np.float16),
        np.array(rows["starts"], np.uint32),
        {name: _joined(parts) for name, parts in drafts.items()},
    )


def draft_name(gone: Sequence[int]) -> str:
    """What the draft without these layers is called."""
    return f"without-{'-'.join(map(str, gone))}"


def _joined(parts: Sequence[Guesses]) -> Guesses:
    tokens, costs, entropies = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return tokens, costs, entropies


def _entropy(logits: Any) -> Any:
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def _best(logits: Any) -> tuple[Any, Any, Any]:
    """Tokens [n, RANKS], costs in nats [n, RANKS] and entropies [n] of a draft's rows."""
    log_p = logits.log_softmax(-1)
    top = log_p.topk(RANKS, -1)
    costs, entropies = (-top.values).numpy().astype(np.float16), _entropy(logits).numpy().astype(np.float16)
    return top.indices.numpy().astype(np.uint32), costs, entropies
