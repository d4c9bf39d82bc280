"""The output of `edgespec doctor`."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict

from edgespec.parts.doctor.checks import Finding, examine, exit_code
from edgespec.shared import logs
from edgespec.worker import config


def run(args: argparse.Namespace) -> int:
    """Prints each finding as it is made. Returns the exit code of the first fault."""
    with logs.policy("error"):
        return asyncio.run(_show_all(args))


async def _show_all(args: argparse.Namespace) -> int:
    findings: list[Finding] = []
    async for finding in examine(lambda: config.given(args)):
        findings.append(finding)
        if args.json:
            print(json.dumps(asdict(finding)), flush=True)
        else:
            _show(finding)

    return exit_code(findings)


def _show(finding: Finding) -> None:
    verdict = "FAULT" if finding.exit_code else "ok"
    print(f"{verdict:6} {finding.check}: {finding.says}", flush=True)
    if finding.do:
        print(f"       do: {finding.do}", flush=True)
