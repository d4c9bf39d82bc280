"""`python -m tools.bench policies --policy amusd adaptive`: policies with real models on this machine (minutes).

Each prompt is answered under each policy once, in turns, with one paired worker behind a round trip, and by plain
decoding. Policies without a worker run beside a process that drafts for nobody, since a worker on the same machine
slows the target. All texts have to be equal: exit status 1 if one is not. Times are of decoding; the ratio is the
median over prompts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.shared import models
from edgespec_lab import options as checked
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo.arms import PHI, Bench, Run, Table, rotated
from edgespec_lab.demo.scene import DRAFTS, PROMPTS, benched, make_rig, read_prompts
from edgespec_lab.markdown import table

PLAIN = "plain"
WITHOUT_WORKER = frozenset({PLAIN, "colocated", "colocated-tree"})
WARM_UP = "Count from one to thirty in words."


def asks(policy: str) -> Mapping[str, Any]:
    """A request's extension; the phi of `wanspec` is the demo's, which fits its target."""
    if policy in ("wanspec", "rolling-k"):
        return {"policy": policy, "phi": PHI}
    return {"policy": policy}


def measure(bench: Bench, prompts: Sequence[str], policies: Sequence[str], tokens: int) -> Table:
    """All policies on every prompt, each prompt beginning with another one."""
    for policy in policies:
        bench.rig.chat(WARM_UP, tokens, **asks(policy))

    runs = Table()
    for number, prompt in enumerate(prompts):
        turn: dict[str, Run] = {}
        for policy in rotated(policies, number):
            turn[policy] = bench.timed(prompt, tokens, asks(policy), beside=policy in WITHOUT_WORKER)
        runs.add(turn)
        print(f"prompt {number + 1} of {len(prompts)}", flush=True)
    return runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--policy", nargs="+", default=["amusd", "wanspec", "adaptive"], help="names of policies")
    parser.add_argument("--draft", choices=tuple(DRAFTS), default="requantised", help="which draft model")
    parser.add_argument("--rtt-ms", type=float, default=20.0, help="round trip between worker and gateway")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=int, default=8, help="prompts to use")
    parser.add_argument("--max-tokens", type=int, default=64, help="completion tokens of each prompt")
    parser.add_argument("--json", type=checked.output, help="write each run here")


def run(options: argparse.Namespace) -> int:
    """Prints a row for each policy; returns 1 if texts differ. Raises ConfigError if the gateway lacks one."""
    policies = list(dict.fromkeys([PLAIN, *options.policy]))
    gateway_choices(*policies)
    prompts = read_prompts(options.prompts, options.limit, seed=0)
    draft = str(DRAFTS[options.draft]())
    with tempfile.TemporaryDirectory(prefix="edgespec-policies-") as scratch:
        made = make_rig(Path(scratch), str(models.quantised()), draft, options.rtt_ms, exact=True)
        with made.linked() as rig, benched(rig) as bench:
            runs = measure(bench, prompts, policies, options.max_tokens)

    print("\n".join(table(["policy", "ms a token", "to plain", "of the worker", "tokens"], rows(runs, policies))))
    print(f"{len(runs.runs)} prompts; other processes used much of a core in {runs.dropped} more, which do not count")
    if options.json:
        figures = [{policy: run.figures() for policy, run in turn.items()} for turn in runs.every]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any(len({run.text for run in turn.values()}) > 1 for turn in runs.every))


def rows(runs: Table, policies: Sequence[str]) -> list[list[str]]:
    """Medians over prompts, and sums of tokens."""
    return [
        [
            policy,
            f"{runs.median(policy, lambda run: run.ms_per_token):.1f}",
            f"{runs.ratio(policy, PLAIN, lambda run: run.ms_per_token):.2f}",
            f"{runs.total(policy, lambda run: run.usage['accepted'].get('worker', 0)):.0f}",
            f"{runs.total(policy, lambda run: run.tokens):.0f}",
        ]
        for policy in policies
    ]
