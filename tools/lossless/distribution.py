"""Are the answers a sample of the target's own distribution, with any drafter?

Each case draws whole answers of a few tokens by one method, under trees of 1 to 8 siblings from an honest, a random or
an adversarial drafter, and compares their frequencies with the exact distribution by a chi-square test. P-values are
corrected for the number of tests by Holm-Bonferroni. `--mutants` plants faults that the test must catch. Exit code 0
only when every honest case passes and every fault is caught.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgespec_lab import verbs
from edgespec_lab.demo.scene import progress
from edgespec_lab.options import number, output
from tools.lossless import methods
from tools.lossless.cases import Case, Result
from tools.lossless.methods import CAUGHT_BELOW, Verdict
from tools.lossless.scene import RULES, Scene, synthetic
from tools.lossless.statistics import holm

Job = tuple[Case, Scene, int]
"""A case, what it samples from, and its number of trials."""
ALPHA = 0.001
"""Corrected p-values of honest cases must be above this."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.lossless distribution`."""
    count = number(int, 1, 2**31)
    parser.add_argument("--trials", type=count, default=131072, help="answers per case (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the whole run: the same one repeats it exactly")
    parser.add_argument("--mutants", action="store_true", help="plant faults, each of which must be caught")
    parser.add_argument("--real", action="store_true", help="also the first tokens of the real target, in fp32")
    parser.add_argument("--real-trials", type=count, default=None, help="answers per real case (default trials / 8)")
    parser.add_argument("--model", type=Path, default=None, help="GGUF file of the real target (default: the demo's)")
    parser.add_argument("--json", type=output, metavar="OUT", help="write the verdicts here")


def run(args: argparse.Namespace) -> int:
    """All cases. Raises ModelError where the real target is missing."""
    began = time.perf_counter()
    console = Console(stderr=True)
    with console.status("loading the real target and listing its exact distributions" if args.real else "begins"):
        jobs = list_jobs(args)
    faults = methods.all_mutants() if args.mutants else []
    results: list[Result] = []
    verdicts: list[Verdict] = []
    with progress(console) as bar:
        task = bar.add_task("", total=len(jobs) + len(faults))
        for index, (case, scene, trials) in enumerate(jobs):
            bar.update(task, description=f"{case.method}, {case.drafter}, {case.siblings} wide")
            results.append(methods.run(case, scene, RULES[case.rule], trials, args.seed * 1000 + index))
            bar.advance(task)
        for index, mutant in enumerate(faults):
            bar.update(task, description=f"fault: {mutant.name}")
            verdicts.append(methods.run_mutant(mutant, synthetic(), args.trials, args.seed * 1000 + 900 + index))
            bar.advance(task)
    report = build_report(results, verdicts, args.seed, time.perf_counter() - began)
    _show(report, verbs.console())
    verbs.write_json(args.json, report)
    if report["ok"]:
        return 0

    return 1


def list_jobs(args: argparse.Namespace) -> list[Job]:
    """All cases that were asked for. Raises ModelError where the real target is missing."""
    scene = synthetic()
    jobs: list[Job] = [(case, scene, args.trials) for case in methods.all_cases()]
    if args.real:
        from tools.lossless import real

        trials = args.real_trials or max(args.trials // 8, 1)
        jobs += [(case, scene, trials) for case, scene in real.jobs(args.model)]
    return jobs


def build_report(results: Sequence[Result], verdicts: Sequence[Verdict], seed: int, seconds: float) -> dict[str, Any]:
    """All verdicts, ready for JSON."""
    corrected = holm([result.fit.p for result in results])
    rows = [
        {
            "method": result.case.method,
            "drafter": result.case.drafter,
            "siblings": result.case.siblings,
            "rule": result.case.rule,
            "trials": result.trials,
            "cells": result.fit.cells,
            "chi_square": round(result.fit.statistic, 3),
            "p": result.fit.p,
            "p_corrected": p,
            "hits": round(result.hits, 4),
            "mismatches": result.mismatches,
            "ok": p > ALPHA and result.mismatches == 0,
        }
        for result, p in zip(results, corrected, strict=True)
    ]
    faults = [
        {
            "name": verdict.mutant.name,
            "fault": (verdict.mutant.fault.__doc__ or "").strip(),
            "method": verdict.method,
            "siblings": verdict.mutant.siblings,
            "trials": verdict.trials,
            "p": verdict.fit.p,
            "answers_changed_by_drafts": verdict.changed,
            "caught": verdict.caught,
        }
        for verdict in verdicts
    ]
    return {
        "ok": all(row["ok"] for row in rows) and all(fault["caught"] for fault in faults),
        "alpha": ALPHA,
        "correction": f"Holm-Bonferroni over {len(rows)} tests",
        "mutant_caught_below": CAUGHT_BELOW,
        "seed": seed,
        "seconds": round(seconds, 1),
        "cases": rows,
        "mutants": faults,
    }


def _show(report: dict[str, Any], console: Console) -> None:
    table = Table(title=f"Honest cases ({report['correction']}, alpha {ALPHA})")
    for name in ("method", "drafter", "wide", "rule", "trials", "cells", "p", "corrected", "hits", "verdict"):
        table.add_column(name)
    for row in report["cases"]:
        verdict = "passes" if row["ok"] else "FAILS"
        figures = (f"{row['p']:.3g}", f"{row['p_corrected']:.3g}", f"{row['hits']:.2f}" if row["hits"] else "", verdict)
        table.add_row(*(str(row[k]) for k in ("method", "drafter", "siblings", "rule", "trials", "cells")), *figures)
    console.print(table)
    if report["mutants"]:
        faults = Table(title=f"Planted faults (caught below {CAUGHT_BELOW})")
        for name in ("fault", "p", "answers changed by drafts", "verdict"):
            faults.add_column(name)
        for row in report["mutants"]:
            changed = row["answers_changed_by_drafts"]
            verdict = "caught" if row["caught"] else "SURVIVES"
            faults.add_row(row["name"], f"{row['p']:.3g}", "" if changed is None else f"{changed:.1%}", verdict)
        console.print(faults)
    console.print(f"{'all well' if report['ok'] else 'NOT lossless'}, {report['seconds']} s")
