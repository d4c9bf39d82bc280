"""Greedy texts through the gateway are the server's own, whatever workers draft, also as they are killed."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from edgespec_lab.demo.scene import PROMPTS, read_prompts
from edgespec_lab.markdown import table
from edgespec_lab.rig import Rig
from edgespec_lab.rig.chat import ChatClient
from edgespec_lab.rig.processes import module
from tools.parts.http_engine.system import ALONE, Answer, Body, add_common, answer, chat, client_of, gateway, vllm

NONE = "none"
KILLED = "killed"
HONEST = [*module("edgespec"), "run", "--always"]
WORKERS: Mapping[str, Sequence[str]] = {
    "right": HONEST,
    "random": module("tools.lossless.random_worker"),
    **{case: [*module("tools.bad_worker"), case] for case in ("wrong", "slow", "stalls")},
    KILLED: HONEST,
}
"""Programs of the worker, which has the server's own weights, quantised; the last one is killed in each completion."""
KILLED_AFTER_S = 0.7
HEADS = ("worker", "equal texts", "tokens", "candidates right", "tokens a round", "seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    add_common(parser)
    parser.add_argument("--limit", type=int, default=16, help="prompts, each by every worker (default: 16)")
    parser.add_argument("--max-tokens", type=int, default=48)


def run(options: argparse.Namespace) -> int:
    """Prints a row for each worker; returns 1 if a text differs."""
    prompts = read_prompts(PROMPTS, options.limit, seed=1)
    rows: list[list[object]] = []
    equal = True
    with vllm(options) as server:
        expected = [answer(server.client, chat(prompt, options.max_tokens)).text for prompt in prompts]
        with gateway(server, options).linked() as rig:
            for worker in (NONE, *WORKERS):
                began = time.monotonic()
                completions = completed(rig, worker, prompts, options.max_tokens)
                seconds = time.monotonic() - began
                rows.append(row(worker, completions, expected, seconds))
                print(rows[-1], flush=True)
                equal = equal and [completion.text for completion in completions] == expected

    print("\n".join(table(HEADS, rows)))
    return int(not equal)


def completed(rig: Rig, worker: str, prompts: Sequence[str], tokens: int) -> list[Answer]:
    """All prompts, one after the other, by one kind of worker."""
    client = client_of(rig)
    if worker == NONE:
        return [answer(client, chat(prompt, tokens, ALONE)) for prompt in prompts]

    restart(rig, worker)
    bodies = [chat(prompt, tokens, {"sources": []}) for prompt in prompts]
    if worker == KILLED:
        return [disturbed(rig, client, body) for body in bodies]
    return [answer(client, body) for body in bodies]


def restart(rig: Rig, worker: str) -> None:
    """The worker ends, and another kind of it is linked."""
    rig.stop("worker")
    rig.start_worker(command=WORKERS[worker])


def disturbed(rig: Rig, client: ChatClient, body: Body) -> Answer:
    """A completion in whose middle the worker is killed; then there is another one."""
    with ThreadPoolExecutor(1) as pool:
        completion = pool.submit(answer, client, body)
        time.sleep(KILLED_AFTER_S)
        rig.stop("worker", signal.SIGKILL)
        done = completion.result()
    restart(rig, KILLED)
    return done


def row(worker: str, completions: Sequence[Answer], expected: Sequence[str], seconds: float) -> list[object]:
    """One line of the table."""
    equal = sum(completion.text == text for completion, text in zip(completions, expected, strict=True))
    tokens = sum(completion.tokens for completion in completions)
    accepted = sum(completion.accepted for completion in completions)
    drafted = sum(sum(completion.figures["drafted"].values()) for completion in completions)
    rounds = sum(completion.figures["rounds"] for completion in completions)
    shown = f"{accepted} of {drafted}"
    return [worker, f"{equal} of {len(expected)}", tokens, shown, f"{tokens / rounds:.2f}", f"{seconds:.0f}"]
