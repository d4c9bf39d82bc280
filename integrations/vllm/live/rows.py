"""`python -m integrations.vllm.live.rows VENV`: drafts for a vLLM that nobody has changed, by lists of prompts.

Starts `vllm serve` without any option of ours, a gateway before it (`target.engine = "vllm+http://..."`), and a paired
worker behind a delayed link. Each prompt is completed plainly and with the worker, in turn, greedily; texts have to be
equal. Prints a row for each draft model, and exits with 1 if a text differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.shared.models import resolve_model
from edgespec_lab.demo.scene import PROMPTS, read_prompts
from edgespec_lab.markdown import table
from edgespec_lab.rig.processes import Processes
from edgespec_lab.rig.stage import CLIENT_OPTIONS, Rig
from integrations.vllm.live.gateway import CONTEXT, INTEGRATION, SERVE_S, ask, text_of
from integrations.vllm.live.served import Server, variables

WARM_UP = "Tell me in a few sentences how a lighthouse works."
"""Completed first, with a worker and without: its passes are compiled and its prices are measured then."""


@dataclass(frozen=True)
class Pair:
    """One prompt, without a worker and with one."""

    equal: bool
    plain_s: float
    remote_s: float
    tokens: int
    verified: int
    accepted: int
    rounds: int
    """Calls and tokens of streams, with the worker."""


def rig_of(folder: Path, server: Server, draft: str, rtt_ms: float) -> Rig:
    """Gateway, worker and delayed link."""
    settings = {
        "target.context": CONTEXT,
        "target.slots": 8,
        "target.dtype": "float32",
        "api.client_options": CLIENT_OPTIONS,
    }
    return Rig(
        folder,
        str(server.venv / "smol"),
        str(resolve_model(draft)),
        None,
        rtt_ms=rtt_ms,
        gateway_options=settings,
        engine=f"vllm+http://127.0.0.1:{server.port}",
        cores=(None, 1),
        load_s=SERVE_S,
    )


def pair(rig: Rig, prompt: str, max_tokens: int) -> Pair:
    """Completes a prompt twice, plainly first."""
    began = time.monotonic()
    alone = ask(rig, prompt, max_tokens, edgespec={"offload": "never"})
    between = time.monotonic()
    helped = ask(rig, prompt, max_tokens)
    ended = time.monotonic()
    figures = helped["usage"]["edgespec"]
    return Pair(
        text_of(alone) == text_of(helped),
        between - began,
        ended - between,
        helped["usage"]["completion_tokens"],
        figures["drafted"].get("worker", 0),
        figures["accepted"].get("worker", 0),
        figures["rounds"],
    )


def measured(rig: Rig, prompts: Sequence[str], max_tokens: int) -> list[Pair]:
    """All prompts, after one that is not counted."""
    pair(rig, WARM_UP, max_tokens)
    found: list[Pair] = []
    for prompt in prompts:
        found.append(pair(rig, prompt, max_tokens))
        print(found[-1], file=sys.stderr, flush=True)
    return found


def row(draft: str, block: int, pairs: Sequence[Pair]) -> list[str]:
    """One line of the table."""
    ratios = [one.remote_s / one.plain_s for one in pairs]
    tokens = sum(one.tokens for one in pairs)
    return [
        draft,
        str(block),
        str(sum(one.equal for one in pairs)) + f" of {len(pairs)}",
        f"{1000 * sum(one.plain_s for one in pairs) / tokens:.1f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{tokens / sum(one.rounds for one in pairs):.2f}",
        f"{sum(one.accepted for one in pairs)} of {sum(one.verified for one in pairs)}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m integrations.vllm.live.rows", description=__doc__)
    parser.add_argument("venv", type=Path, help="what `make vllm` made")
    parser.add_argument("--draft", nargs="+", default=["auto:quantised", "auto:dropped"], metavar="MODEL")
    parser.add_argument("--block-size", type=int, default=32, metavar="TOKENS", help="of vLLM's cache")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=int, default=6, metavar="N", help="prompts to use")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--rtt-ms", type=float, default=15.0, metavar="MS", help="round trip to the worker")
    parser.add_argument("--target", default="", metavar="FOLDER", help="another model for vLLM than SmolLM2")
    options = parser.parse_args(argv)

    os.environ["PYTHONPATH"] = f"{INTEGRATION.parents[1]}:{INTEGRATION}"  # for the gateway, which imports edgespec_vllm
    prompts = read_prompts(options.prompts, options.limit, seed=1)
    rows: list[list[str]] = []
    equal = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        more = ("--enable-prefix-caching", "--block-size", str(options.block_size))
        venv = options.venv.resolve()
        with Processes(folder, environment=variables(venv, folder)) as processes:
            server = Server(venv, processes, model=options.target, more=more)
            with server.running():
                for number, draft in enumerate(options.draft):
                    with rig_of(folder / f"rig{number}", server, draft, options.rtt_ms).linked() as rig:
                        pairs = measured(rig, prompts, options.max_tokens)
                    rows.append(row(draft, options.block_size, pairs))
                    equal = equal and all(one.equal for one in pairs)

    heads = ("draft", "block", "equal texts", "plain, ms a token", "time ÷ plain", "tokens a round", "accepted")
    print("\n".join(table(heads, rows)))
    print(json.dumps({"equal": equal}))
    if equal:
        return 0

    return 1


if __name__ == "__main__":
    sys.exit(main())
