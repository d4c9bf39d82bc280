"""`python -m tools.attacks.ranking`: requests and tokens a pass with a silent, a slow or a lying worker nearby.

A real gateway, an honest worker behind a delayed link, and one bad worker at a time without delay. `--checkout` takes
gateway and workers from another checkout, so that two runs compare before and after.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from edgespec.lab.rig import Processes, Rig, module
from edgespec.shared import models
from tools import options, verbs
from tools.attacks.aim import Aim
from tools.attacks.attacker import Orders
from tools.attacks.prompts import prompt
from tools.attacks.runner import ROOT

CASES = ("none", "silent", "slow", "lying")
PROGRAMS = {"slow": "slow", "lying": "wrong"}
"""Cases of tools/bad_worker.py; the silent one is the attackers' own link, which drafts nothing."""
QUIET = "paired-trees"
"""The flood whose control is that link."""
HONEST = "honest"
SHOWN = ("case", "bad", "only", "passes", "tokens_per_pass", "ms_per_token")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.attacks.ranking", description=__doc__)
    parser.add_argument("--checkout", type=Path, default=ROOT, metavar="DIR", help="default: this one")
    parser.add_argument("--requests", type=options.number(int, 1, 1000), default=20, help="of each case")
    parser.add_argument("--max-tokens", type=options.number(int, 1, 512), default=64)
    parser.add_argument("--rtt-ms", type=options.number(float, 0, 1000), default=10.0, help="of the honest worker")
    parser.add_argument("--json", type=options.output, metavar="OUT")
    parser.set_defaults(run=run)
    return verbs.run(parser, argv)


def run(args: argparse.Namespace) -> int:
    """Prints a row for each case. Raises EdgespecError."""
    console, rows = verbs.console(), list[dict[str, Any]]()
    draft = str(models.quantised())
    gateway = {
        "target.threads": 1,
        "target.slots": 2,
        "api.client_options": ["offload", "policy", "ignore_eos", "usage"],
    }
    with (
        tempfile.TemporaryDirectory(prefix="ranking-") as folder,
        Rig(
            Path(folder), draft, draft, None, rtt_ms=args.rtt_ms, gateway_options=gateway,
            worker_options={"draft.threads": 1}, checkout=args.checkout,
        ) as stage,
    ):  # fmt: skip
        stage.start_gateway()
        stage.add_worker(HONEST, args.rtt_ms)
        made = stage.gateway_command("keys", "create", "--name", "all", "--json", "--offload", HONEST, "default")
        for case in CASES:
            with bad(stage, case, args.checkout):
                rows.append({"case": case, **asked(stage, made["key"], case, args)})
                console.print(rows[-1])
                verbs.write_json(args.json, {"checkout": str(args.checkout), "rows": rows})
    table = Table("bad worker", "requests that it had", "that it kept", "passes", "tokens a pass", "ms a token")
    for row in rows:
        table.add_row(
            *(str(row[name]) for name in ("case", "bad", "only", "passes", "tokens_per_pass", "ms_per_token"))
        )
    console.print(table)
    return 0


@contextmanager
def bad(stage: Rig, case: str, checkout: Path) -> Iterator[None]:
    """The bad worker of a case, linked directly."""
    if case == "none":
        yield
        return
    stage.pair(case)
    if case in PROGRAMS:
        stage.start_worker(case, [*module("tools.bad_worker"), PROGRAMS[case]])
        yield
        stage.stop(case)
        return
    port = int(stage.ready["api"]["port"])
    aim = Aim(port, stage.link_port, stage.ready["model"], "", str(stage.folder / f"{case}.toml"))
    orders = Orders(QUIET, False, str(checkout), 0.0, [0, 1], 3600, asdict(aim))
    with Processes(stage.folder, environment={"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}) as attacker:
        attacker.start("attacker", module("tools.attacks.attacker"), piped=True)
        attacker.say("attacker", orders.line())
        attacker.line("attacker")
        yield
        attacker.stop("attacker", sig=None)


def asked(stage: Rig, key: str, case: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one case: requests one after the other."""
    rng, passes, tokens, took_s = random.Random(case), 0, 0, 0.0
    bad, only = 0, 0
    for number in range(args.requests):
        began = time.monotonic()
        answer = stage.chat(prompt(rng, number, 20), args.max_tokens, key=key, policy="wanspec", ignore_eos=True)
        took_s += time.monotonic() - began
        extension = answer["usage"]["edgespec"]
        passes += extension["rounds"]
        tokens += answer["usage"]["completion_tokens"]
        bad += f"demo-{case}" in extension["workers"]
        only += extension["workers"] == [f"demo-{case}"]
    return {
        "bad": f"{bad} of {args.requests}",
        "only": f"{only} of {args.requests}",
        "passes": passes,
        "tokens_per_pass": round(tokens / passes, 2),
        "ms_per_token": round(1000 * took_s / tokens, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
