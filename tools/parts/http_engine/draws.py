"""At temperature 1 the distribution of completions is the server's own, whatever a worker drafts: a chi-square test."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from edgespec_lab.markdown import table
from edgespec_lab.rig.chat import ChatClient
from edgespec_lab.rig.processes import module
from tools.lossless.statistics import MIN_EXPECTED, Fit, chi_square_tail
from tools.parts.http_engine.system import SLOTS, add_common, client_of, gateway, vllm

PROMPT = "no, no"
"""The random worker takes half of its tokens out of the text, so that it is often right here."""
NODES = 3
"""Candidates of a call: each is a prompt, which the server computes whole, since it is shorter than a block."""
AT_ONCE = 4
RARE = "rare"
HEADS = ("draws by", "samples", "completions", "candidates right", "chi-square", "cells", "p")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    add_common(parser)
    parser.add_argument("--samples", type=int, default=4000, help="of each arm (default: 4000)")
    parser.add_argument("--max-tokens", type=int, default=4, help="of a sample")
    parser.add_argument("--policy", default="amusd", help="the gateway's: it verifies whatever has come")
    parser.add_argument("--least-p", type=float, default=0.001, help="below which distributions differ")
    parser.add_argument("--top-k", type=int, default=3, help="few tokens, so that each completion is seen often")


def run(options: argparse.Namespace) -> int:
    """Compares the server's own samples with others of its own, and with those through the gateway.

    Returns 1 if a distribution differs.
    """
    body = {
        "messages": [{"content": PROMPT}],  # the client sends the text alone
        "max_tokens": options.max_tokens, "temperature": 1, "top_k": options.top_k,
    }  # fmt: skip
    drafted = {"usage": True, "ignore_eos": True, "policy": options.policy, "sources": []}
    rows: list[list[object]] = []
    worst = 1.0
    with vllm(options) as server:
        own = ChatClient(server.client.port, server.client.model, "", text=True)
        plain, _ = samples(own, body | {"ignore_eos": True}, options.samples)
        with gateway(server, options, {"policy.verify_nodes": NODES}).linked() as rig:
            rig.stop("worker")
            rig.start_worker(command=module("tools.lossless.random_worker"))
            through = ChatClient(client_of(rig).port, rig.ready["model"], rig.key, text=True)
            arms: Mapping[str, tuple[ChatClient, Mapping[str, Any]]] = {
                "vLLM alone": (own, body | {"ignore_eos": True}),
                "gateway, random worker": (through, body | {"edgespec": drafted}),
            }
            for arm, (client, asked) in arms.items():
                counts, right = samples(client, asked, options.samples)
                fit = two_sample(plain, counts)
                worst = min(worst, fit.p)
                rows.append(
                    [arm, counts.total(), len(counts), right, f"{fit.statistic:.1f}", fit.cells, f"{fit.p:.3f}"]
                )
                print(rows[-1], flush=True)

    print("\n".join(table(HEADS, rows)))
    return int(worst < options.least_p)


def samples(client: ChatClient, body: Mapping[str, Any], count: int) -> tuple[Counter[str], str]:
    """How often each completion came, and how many candidates were right."""
    asked = {**body, "n": SLOTS // AT_ONCE}
    counts: Counter[str] = Counter()
    accepted = 0
    drafted = 0
    with ThreadPoolExecutor(AT_ONCE) as clients:
        for response in clients.map(client.complete, [asked] * -(-count // asked["n"])):
            counts.update(choice["message"]["content"] for choice in response["choices"])
            figures = response["usage"].get("edgespec", {})
            accepted += sum(figures.get("accepted", {}).values())
            drafted += sum(figures.get("drafted", {}).values())
    return counts, f"{accepted} of {drafted}"


def two_sample(first: Counter[str], second: Counter[str]) -> Fit:
    """Pearson's test that both counts are of one distribution; rare completions are one cell."""
    weight = first.total() / (first.total() + second.total())
    cells: Counter[str] = Counter()
    observed: Counter[str] = Counter()
    for text in first | second:
        both = first[text] + second[text]
        cell = text
        if both * min(weight, 1 - weight) < MIN_EXPECTED:
            cell = RARE
        observed[cell] += first[text]
        cells[cell] += both

    statistic = 0.0
    for cell, both in cells.items():
        expected_first = both * weight
        squared = (observed[cell] - expected_first) ** 2
        statistic += squared / expected_first + squared / (both - expected_first)
    return Fit(len(cells), statistic, chi_square_tail(statistic, len(cells) - 1))
