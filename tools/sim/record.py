"""Records real models for the simulator: what the target says at every position, and what the drafts would have said.

The target answers every prompt greedily. Each draft then reads prompt and answer, so what is kept is its proposal after
the target's own tokens. A draft is the target with layers left out, or its file as llama.cpp runs it (`quantised`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edgespec.core.errors import ConfigError, ModelError
from tools.options import number
from tools.sim.recording import RANKS, SHIPPED, Proposals, Recording, save

PROMPTS = Path(__file__).with_name("prompts.jsonl")
QUANTISED = "quantised"
DRAFTS = f"14;10;8,16;{QUANTISED}"
CONTEXT = 2048
"""Most tokens of prompt and answer together."""

Reader = Callable[[Any, int], Proposals]
"""`read(ids, start)`: what a draft proposes at every token of `ids` from `start` on, after the tokens before it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tools.sim record`."""
    parser.add_argument("--out", type=Path, default=SHIPPED, help="file to write (default: the shipped recording)")
    parser.add_argument("--model", type=Path, help="GGUF file of the target (default: the demo's)")
    parser.add_argument("--prompts", type=Path, help="JSON lines with `prompt` or `turns` (default: 48 of our own)")
    parser.add_argument("--limit", type=number(int, 1, 100_000), default=48, help="most prompts (default: 48)")
    parser.add_argument("--max-tokens", type=number(int, 1, CONTEXT), default=160, help="longest answer (default: 160)")
    parser.add_argument(
        "--drafts", default=DRAFTS, help=f"layers to leave out, or {QUANTISED}; drafts divided by ';' ({DRAFTS})"
    )


def run(options: argparse.Namespace) -> int:
    """Records and writes; returns 0. Raises ConfigError and ModelError."""
    from edgespec.lab.demo.scene import read_lines
    from edgespec.shared import models

    prompts = [line.prompt for line in read_lines(options.prompts or PROMPTS)][: options.limit]
    recording = record(options.model or models.quantised(), prompts, options.drafts.split(";"), options.max_tokens)
    save(options.out, recording)
    for name in recording.drafts:
        print(f"{name:14} top-1 {recording.match(name, 1):.3f}  top-2 {recording.match(name, 2):.3f}")
    print(f"{len(recording.targets)} positions in {options.out.stat().st_size / 1e6:.2f} MB: {options.out}")
    return 0


def record(model: Path, prompts: Sequence[str], drafts: Sequence[str], max_tokens: int) -> Recording:
    """Runs the models, one thread each. Raises ConfigError for a draft that cannot be, ModelError for a bad file."""
    dropped = {draft_name(layers): layers for layers in map(_layers, drafts)}
    target = Target(model)
    readers = {name: target.without(layers) if layers else quantised(model) for name, layers in dropped.items()}
    answers: list[tuple[Any, Any]] = []
    said: dict[str, list[Proposals]] = {name: [] for name in readers}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, transient=True) as bar:
        for prompt in bar.track(prompts, description="recording"):
            ids, start, entropies = target.answer(prompt, max_tokens)
            answers.append((ids[0, start:].numpy(), entropies.numpy()))
            for name, read in readers.items():
                said[name].append(read(ids, start))
    lengths = [len(tokens) for tokens, _ in answers]
    return Recording(
        np.concatenate([tokens for tokens, _ in answers]).astype(np.uint32),
        np.concatenate([entropies for _, entropies in answers]).astype(np.float16),
        np.cumsum([0, *lengths[:-1]]).astype(np.uint32),
        {name: _joined(parts) for name, parts in said.items()},
    )


class Target:
    """The target in torch, fp32, one thread; and what is left of it without some of its layers."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ModelError(f"The model {path} does not exist.")
        os.environ.setdefault("TQDM_DISABLE", "1")  # transformers shows bars of its own while it loads
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, logging

        logging.disable_progress_bar()
        torch.set_num_threads(1)
        self._tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        self._model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        self._layers = list(self._model.model.layers)

    def answer(self, prompt: str, max_tokens: int) -> tuple[Any, int, Any]:
        """Ids of prompt and greedy answer [1, n], where the answer starts, and the entropy of each of its tokens."""
        import torch

        chat = [{"role": "user", "content": prompt}]
        ids = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        start = ids.shape[1]
        with torch.inference_mode():
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=min(max_tokens, CONTEXT - start),
                do_sample=False, output_logits=True, return_dict_in_generate=True,
                pad_token_id=self._tokenizer.eos_token_id,
            )  # fmt: skip
            return out.sequences, start, _entropy(torch.cat(out.logits))

    def without(self, dropped: Sequence[int]) -> Reader:
        """The draft that lacks these layers. Raises ConfigError where there are none such."""
        import torch

        if not set(dropped) < set(range(len(self._layers))):
            raise ConfigError(f"the target has layers 0 to {len(self._layers) - 1}; {list(dropped)} cannot be left out")
        kept = torch.nn.ModuleList(layer for i, layer in enumerate(self._layers) if i not in dropped)

        def read(ids: Any, start: int) -> Proposals:
            self._model.model.layers = kept
            try:
                with torch.inference_mode():
                    return _best(self._model(ids, use_cache=False).logits[0, start - 1 : -1])
            finally:
                self._model.model.layers = torch.nn.ModuleList(self._layers)

        return read


def _layers(draft: str) -> list[int]:
    """The layers that a draft lacks; none for the quantised file as it is."""
    try:
        return [] if draft == QUANTISED else [int(layer) for layer in draft.split(",")]
    except ValueError as error:
        raise ConfigError(f"`--drafts` takes layer numbers or {QUANTISED}, not {draft!r}") from error


def draft_name(dropped: Sequence[int]) -> str:
    """What the draft without these layers is called."""
    return f"without-{'-'.join(map(str, dropped))}" if dropped else QUANTISED


def quantised(model: Path) -> Reader:
    """The file's own weights in llama.cpp, token by token, as the worker runs them."""
    import torch

    from edgespec.llamacpp.context import Context, Row

    llama = Context(model, cells=CONTEXT, sequences=1, batch=128, threads=1)

    def read(ids: Any, start: int) -> Proposals:
        tokens = ids[0].tolist()
        llama.trim(0, 0)
        llama.decode([Row(token, i, (0,)) for i, token in enumerate(tokens[: start - 1])])
        rows = []
        for i in range(start - 1, len(tokens) - 1):
            llama.decode([Row(tokens[i], i, (0,), wants_logits=True)])
            rows.append(torch.from_numpy(llama.logits(0).copy()))
        return _best(torch.stack(rows))

    return read


def _joined(parts: Sequence[Proposals]) -> Proposals:
    tokens, costs, entropies = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return tokens, costs, entropies


def _entropy(logits: Any) -> Any:
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def _best(logits: Any) -> Proposals:
    """Tokens [n, RANKS], costs in nats [n, RANKS] and entropies [n] of a draft's rows."""
    log_p = logits.log_softmax(-1)
    top = log_p.topk(RANKS, -1)
    costs, entropies = (-top.values).numpy().astype(np.float16), _entropy(logits).numpy().astype(np.float16)
    return top.indices.numpy().astype(np.uint32), costs, entropies
