"""A long prompt beside streams: what it costs them, and how long it waits for its first token (minutes).

A gateway in a process of its own streams completions over its chat API; once each has some tokens, a long prompt comes
in. Every repetition has other prompts: a long one alone, another beside the streams, and the streams once more without
it, whose texts are compared. Prefix caches are off.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from cloud_gateway.core.trace.format import Trace, emitted, unseal
from edgespec.core.errors import ConfigError
from edgespec.lab import deep_target
from edgespec.lab.demo import DRAFTS, PHI, PROMPTS, read_prompts
from edgespec.lab.demo.series import WRITTEN_S, trace_options, written
from edgespec.lab.drafts import FORMATS
from edgespec.lab.rig import Rig, RigError, machine_time_s
from edgespec.lab.rig.chat import ChatClient, greedy
from tools import options as checked
from tools import verbs
from tools.bench import long_figures
from tools.bench.live import PROMPT_ROOM, draft_of, targets_of
from tools.bench.live.systems import used_s

ALONE = 48
"""Events that each stream has had when the long prompt is sent."""
LONG_TOKENS = 8
"""Of the long prompt's completion."""
POLL_S = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench long`."""
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="llamacpp")
    parser.add_argument("--target", choices=("plain", "deep"), default="plain", help="deep: a pass costs several times")
    parser.add_argument("--blocks", type=checked.number(int, deep_target.MIN_BLOCKS, deep_target.MAX_BLOCKS), default=4)
    parser.add_argument("--format", choices=("as-is", *FORMATS), default="as-is", help="weights of the GGUF target")
    parser.add_argument("--model", type=Path, help="another GGUF target")
    parser.add_argument("--draft", help=f"with a worker and a local draft: {', '.join(DRAFTS)}, or a GGUF file")
    parser.add_argument("--rtt-ms", type=checked.number(float, 0, 10_000), default=15.0, help="of the worker's link")
    parser.add_argument("--cores", type=int, choices=(1, 2), default=1, help="of the gateway; a worker has another")
    parser.add_argument("--prompt-tokens", type=checked.number(int, 64, 100_000), default=2586, help="at most")
    parser.add_argument("--streams", type=checked.number(int, 1, 64), default=3)
    parser.add_argument("--max-tokens", type=checked.number(int, 64, 4096), default=2048, help="of a stream, at most")
    parser.add_argument("--repetitions", type=checked.number(int, 1, 100), default=3)
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--seed", type=int, default=1, help="which prompts are drawn, and the words of the long ones")
    parser.add_argument("--json", type=checked.output, metavar="OUT", help="all figures; OUT.md beside it")


def run(options: argparse.Namespace) -> int:
    """Prints a table; returns 1 where the engine torch gave a stream another text beside the prompt.

    Raises ConfigError, ModelError, RigError.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the processes are ended, too
    console = verbs.console()
    prompts, words = drawn(options)
    ours, gguf = targets_of(options, console)
    count = counting(gguf)
    with tempfile.TemporaryDirectory(prefix="edgespec-long-") as folder, started(options, ours, Path(folder)) as rig:
        bench = Bench(rig, ChatClient(rig.ready["api"]["port"], rig.ready["model"], rig.key), options.max_tokens)
        bench.warm_up()
        rows = []
        for number in range(options.repetitions):
            longs = [long_text(words, options.prompt_tokens, f"{options.seed} {number} {i}", count) for i in (0, 1)]
            own = prompts[number * options.streams : (number + 1) * options.streams]
            rows.append(bench.repetition(own, *longs))
            console.print(
                f"{number + 1} of {options.repetitions}: ratio {rows[-1]['ratio']}, gap {rows[-1]['gap_ms']} ms"
            )
    show(options, rows, ours, console)
    return int(options.engine == "torch" and any(row["same_texts"] != _all(options.streams) for row in rows))


def drawn(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """A prompt for every stream of every repetition, and the words of the long ones. Raises ConfigError."""
    every, needed = read_prompts(options.prompts, sys.maxsize, options.seed), options.streams * options.repetitions
    if len(set(every)) < needed:
        raise ConfigError(
            f"The streams need {needed} different prompts and --prompts has {len(set(every))}: lower --repetitions or "
            "--streams, or name a longer file."
        )
    return list(dict.fromkeys(every))[:needed], " ".join(every).split()


def counting(gguf: Path) -> Callable[[str], int]:
    """Counts the tokens of a prompt with the chat template. Raises ModelError."""
    from cloud_gateway.models.target_model.load import load_vocabulary
    from cloud_gateway.models.text import Text

    text = Text(load_vocabulary(gguf).tokenizer)
    return lambda prompt: len(text.render_chat([{"role": "user", "content": prompt}]))


def long_text(words: Sequence[str], tokens: int, seed: str, count: Callable[[str], int]) -> str:
    """These words in a drawn order, as many as make at most so many tokens."""
    chosen = random.Random(seed).choices(words, k=tokens)
    fewest, most = 0, len(chosen)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if count(" ".join(chosen[:middle])) <= tokens:
            fewest = middle
        else:
            most = middle - 1
    return " ".join(chosen[:fewest])


@contextlib.contextmanager
def started(options: argparse.Namespace, target: Path, folder: Path) -> Iterator[Rig]:
    """The gateway on its cores, and a linked worker on another where there is a draft. Raises ConfigError, RigError."""
    draft = draft_of(options.draft) if options.draft else None
    cores, needed = sorted(os.sched_getaffinity(0)), options.cores + (draft is not None)
    if len(cores) < needed:
        raise ConfigError(f"This needs {needed} cores and may use {len(cores)}: lower --cores, or leave --draft out.")
    longest = max(options.prompt_tokens + LONG_TOKENS, PROMPT_ROOM + options.max_tokens)
    settings: dict[str, Any] = {
        "policy.phi": PHI, "target.threads": options.cores, "target.slots": options.streams + 1,
        "target.context": 256 * -(-longest // 256), "target.prefix_cache": False,
        "local_draft.model": str(draft or ""), "local_draft.threads": 1, "local_draft.prefix_cache": False,
        **trace_options(folder, folder), "traces.max_kb": 65_536,
    }  # fmt: skip
    rig = Rig(
        folder=folder, target=str(target), draft=str(draft or ""), local_draft=None, engine=options.engine,
        rtt_ms=options.rtt_ms, gateway_options=settings, cores=(None, cores[-1]),
        within={"gateway": ["taskset", "-c", ",".join(map(str, cores[: options.cores]))]},
        worker_options={"draft.prefix_cache": False, "draft.threads": 1, "draft.requests": options.streams + 1},
    )  # fmt: skip
    with rig:
        for _, step in rig.steps()[: None if draft else 2]:
            step()
        yield rig


@dataclass(slots=True)
class Seen:
    """A completion as its client sees it."""

    text: str = ""
    times: list[float] = field(default_factory=list)
    """When its events came, on the clock that the gateway has too."""
    prompt_tokens: int = 0

    def read(self, chunks: Iterator[dict[str, Any]], ended: threading.Event) -> None:
        """Until its end, or until `ended`. Raises RigError where the server breaks it off."""
        for chunk in chunks:
            if "error" in chunk:
                raise RigError(f"The server broke off a completion: {chunk['error']}")
            for choice in chunk.get("choices", ()):
                if piece := choice.get("delta", {}).get("content"):
                    self.text += piece
                    self.times.append(time.perf_counter())
            self.prompt_tokens = (chunk.get("usage") or {}).get("prompt_tokens", 0)
            if ended.is_set():
                return


@dataclass(slots=True)
class Streams:
    """Completions that run at the same time; leaving the block breaks them off."""

    client: ChatClient
    prompts: Sequence[str]
    max_tokens: int
    seen: list[Seen] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    running: list[Future[None]] = field(default_factory=list)

    def __enter__(self) -> Streams:
        pool = ThreadPoolExecutor(len(self.prompts))
        self.seen = [Seen() for _ in self.prompts]
        for prompt, one in zip(self.prompts, self.seen, strict=True):
            chunks = self.client.chunks(asked(prompt, self.max_tokens))
            self.running.append(pool.submit(one.read, chunks, self.ended))
        pool.shutdown(wait=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for one in self.running:
            one.exception()

    def wait(self, done: Callable[[Seen], bool]) -> None:
        """Until this holds for all. Raises RigError where one fails, ConfigError where one ends before."""
        while not all(map(done, self.seen)):
            for one in self.running:
                if one.done():
                    one.result()
                    raise ConfigError("A stream ended before the long prompt was read: raise --max-tokens.")
            time.sleep(POLL_S)


def asked(prompt: str, max_tokens: int) -> dict[str, Any]:
    """A greedy completion that does not end by itself."""
    return greedy(prompt, max_tokens, {"ignore_eos": True})


@dataclass(slots=True)
class Bench:
    """A gateway, and how it is asked."""

    rig: Rig
    client: ChatClient
    max_tokens: int
    counted: set[Path] = field(default_factory=set)
    """Traces of runs before."""

    def warm_up(self) -> None:
        """A short completion that is not counted: memory is touched."""
        self.client.complete(greedy("Count from 1 to 9 in words.", 24, {}))
        self._traces(1)

    def repetition(self, prompts: Sequence[str], alone: str, long: str) -> dict[str, Any]:
        """All figures of one repetition. Raises ConfigError, RigError."""
        first_alone_s, _ = self._first(alone)
        self._traces(1)
        pids = [*self.rig.pids(), os.getpid()]
        own, everyone, began = used_s(pids), machine_time_s(), time.perf_counter()
        with Streams(self.client, prompts, self.max_tokens) as streams:
            streams.wait(lambda one: len(one.times) >= ALONE)
            sent = time.perf_counter()
            first_s, seen = self._first(long)
            streams.wait(lambda one: one.times[-1] > sent + first_s)
        others = (machine_time_s() - everyone - used_s(pids) + own) / (time.perf_counter() - began)
        *traces, read = sorted(map(_read, self._traces(len(prompts) + 1)), key=lambda one: one.header.prompt_len)
        events = [one.events for one in traces]
        figures = long_figures.beside(events, read.events, [one.times for one in streams.seen], sent)
        return {
            "prompt_tokens": seen.prompt_tokens, "first_alone_s": round(first_alone_s, 2),
            "first_beside_s": round(first_s, 2), **figures,
            "same_texts": self._same(prompts, streams.seen, max(map(emitted, events))),
            "others_share": round(max(others, 0.0), 3),
        }  # fmt: skip

    def _first(self, prompt: str) -> tuple[float, Seen]:
        """Seconds to the first token of a long prompt, at its client."""
        seen, began = Seen(), time.perf_counter()
        seen.read(self.client.chunks(asked(prompt, LONG_TOKENS)), threading.Event())
        if not seen.times:
            raise RigError("The completion of the long prompt has no text.")
        return seen.times[0] - began, seen

    def _same(self, prompts: Sequence[str], seen: Sequence[Seen], tokens: int) -> str:
        """How many streams have the same text without the long prompt, as far as they went beside it."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            found = list(pool.map(lambda prompt: self.client.complete(asked(prompt, tokens)), prompts))
        self._traces(len(prompts))
        texts = [one["choices"][0]["message"]["content"] for one in found]
        return _all(len(prompts), sum(text.startswith(one.text) for text, one in zip(texts, seen, strict=True)))

    def _traces(self, count: int) -> set[Path]:
        """Those of the requests since the last run, which the gateway writes when they are over. Raises RigError."""
        until = time.perf_counter() + WRITTEN_S
        while len(new := set(written(self.rig.folder).glob("*.trace")) - self.counted) < count:
            if time.perf_counter() > until:
                raise RigError(f"The gateway wrote {len(new)} of {count} traces.")
            time.sleep(POLL_S)
        self.counted |= new
        return new


def _read(path: Path) -> Trace:
    return unseal(path.read_bytes())[0]


def _all(streams: int, same: int | None = None) -> str:
    return f"{streams if same is None else same}/{streams}"


def show(options: argparse.Namespace, rows: Sequence[dict[str, Any]], target: Path, console: Console) -> None:
    """Prints the table and what it comes to; writes both where asked."""
    found = long_figures.summary(rows)
    remark = (
        f"Lowest ratio {found['ratio_min']:.2f} (goal {long_figures.RATIO}). Longest gap {found['gap_ms_max']:.0f} ms, "
        f"at a client {found['client_gap_ms_max']:.0f} ms; one chunk and one round took up to "
        f"{found['chunk_and_round_ms']:.0f} ms (goal: no more than these, and at most {long_figures.GAP_MS} ms on two "
        "cores)."
    )
    console.print(verbs.table(long_figures.table(rows)))
    console.print(remark, highlight=False)
    if options.json:
        names = ("engine", "target", "format", "rtt_ms", "cores", "streams", "prompt_tokens", "seed")
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        files = {"file": target.name, "draft": Path(options.draft).name if options.draft else None}
        asked_for = {name: getattr(options, name) for name in names} | files | {"machine": machine}
        verbs.write_json(options.json, {"settings": asked_for, "summary": found, "repetitions": rows})
        options.json.with_suffix(".md").write_text(long_figures.markdown(rows, remark), encoding="utf-8")
