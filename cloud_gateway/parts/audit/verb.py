"""`cloud-gateway audit`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cloud_gateway.process import commands
from cloud_gateway.process.config import given
from edgespec.core.errors import KeyStoreError
from edgespec.shared import control_client as control
from edgespec.shared import folders

FOLDER = "audit"
"""In the gateway's state folder."""
LINE = "{:19}  {:28}  {:24}  {:9}  {:28}  {:>6}  {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--since", type=commands.since, default=0.0, metavar="WHEN", help="only from then on: 90m, 24h, 7d, or a date"
    )


def show(args: argparse.Namespace) -> int:
    """Prints the log, which the running gateway reads: it may be another user's. Without one, from its files."""
    if not args.json:
        print(LINE.format("TIME", "REQUEST", "KEY", "EVENT", "WORKER", "FRAMES", "ENDED").rstrip())

    for row in rows(args):
        if args.json:
            commands.print_json(row)
            continue
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"]))
        who = f"{row['key_name'] or '-'} ({row['key']})"
        worker = f"{row['worker_name']} ({row['worker']})"
        frames = row.get("frames", "-")
        reason = row.get("reason", "-")
        if row.get("learn"):
            reason = "may learn from it"
        print(LINE.format(at, row["request"], who, row["event"], worker, frames, reason).rstrip())

    return 0


def rows(args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """The entries, oldest first. Raises KeyStoreError if the files cannot be read."""
    path = commands.control_socket(args)
    if commands.is_running(path):
        for event in control.stream(path, "audit", since=args.since):
            yield from event["entries"]
        return

    from cloud_gateway.parts.audit.book import entries

    folder = folders.state_dir("gateway", given(args).daemon.state_dir) / FOLDER
    try:
        yield from map(msgspec.to_builtins, entries(folder, args.since))
    except OSError as error:
        raise KeyStoreError(f"{folder}: cannot read it ({error.strerror or error}).") from None
