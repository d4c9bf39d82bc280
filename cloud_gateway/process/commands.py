"""The subcommands of `cloud-gateway`, except `serve` (serve.py). They print; errors are raised.

Most call the running gateway through its control socket. If none runs, the same handlers work on its files.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import platform
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloud_gateway.auth import KeyRing
from cloud_gateway.process import config, views
from cloud_gateway.process.views import CHANGED
from edgespec import __version__
from edgespec.core.errors import PairingError
from edgespec.shared import control_client as control
from edgespec.shared import folders, logs
from edgespec.shared.installed import another
from edgespec.shared.starting import Starting

Row = Mapping[str, Any]
VERSION = f"cloud-gateway {__version__} (Python {platform.python_version()})"


def serve(args: argparse.Namespace) -> int:
    settings = config.given(args)
    with logs.policy(settings.daemon.log_level):
        starting = Starting(f"cloud-gateway {__version__}")
        starting("loading libraries")
        from cloud_gateway.process import serve as server  # HTTP, links and engine: half a second

        server.run(settings, starting, args.ready_file, args.parts)

    return 0


def link(args: argparse.Namespace) -> int:
    settings = config.given(args)
    with logs.policy(settings.daemon.log_level):
        starting = Starting(f"cloud-gateway {__version__}")
        another("edgespec_vllm.link.process", "`cloud-gateway link`").run(
            settings, args.model, starting, args.board, args.board_group, args.parts
        )

    return 0


def version(args: argparse.Namespace) -> int:
    return _print(VERSION)


def status(args: argparse.Namespace) -> int:
    socket = control_socket(args)
    if args.watch and not args.json:
        views.show_live(
            lambda: (control.call(socket, "status"), control.call(socket, "workers")["workers"]), args.parts
        )
    while args.watch and args.json:
        print_json(control.call(socket, "status"))
        time.sleep(1.0)
    answer = control.call(socket, "status")
    if args.json:
        return print_json(answer)
    return _print(views.text(answer, args.parts))


# --- pairing -------------------------------------------------------------------------------------------------------


def pair(args: argparse.Namespace) -> int:
    """`cloud-gateway pair`: shows codes until a worker is paired or the window closes (raised as PairingError)."""
    for event in control.stream(control_socket(args), "pair", groups=args.group):
        if args.json:
            print_json(event)
        elif "code" in event:
            _show_code(event)
        elif "failed" in event:
            print(f"An attempt failed: {event['message']} ({event['left']} more may fail).", flush=True)
        if "paired" in event:
            if not args.json:
                print(f"Paired with {event['paired']['name']} ({event['paired']['id']}). It may draft from now on.")
            return 0
    raise PairingError("The gateway ended the pairing without an outcome; see its log.")


def _show_code(event: Row) -> None:
    print(f"On the workstation, within {event['expires_in_s']:.0f} s, type:\n")
    print(f"    edgespec pair {event['address']} {event['code']}\n")
    if event["announced"]:
        print(f"or, on the gateway's own network: edgespec pair {event['code']}\n")
    print("Waiting for it; Ctrl-C closes the window.", flush=True)


# --- workers -------------------------------------------------------------------------------------------------------


BROUGHT = ("requests", "rank", "helps")
"""Figures of a worker since the gateway started, and its place for the next request."""


def list_workers(args: argparse.Namespace) -> int:
    rows = _ask(args, "workers")["workers"]
    if args.json:
        return print_json({"workers": rows})
    if not rows:
        return _print("No worker is paired yet; 'cloud-gateway pair' pairs one.")

    table = [
        [
            r["id"], r["name"], _state(r), " ".join(r["groups"]), _rtt(r), _when(r["paired_at"]), _when(r["last_seen"]),
            *("-" if r[name] is None else str(r[name]) for name in BROUGHT),
        ]
        for r in rows
    ]  # fmt: skip
    head = ["ID", "NAME", "STATE", "GROUPS", "RTT", "PAIRED", "LAST LINKED", *map(str.upper, BROUGHT)]
    return _print_table(head, table)


def change_worker(change: str, args: argparse.Namespace) -> int:
    """Changes a worker; the value, if it takes one, is `args.value`."""
    values = [args.value] if hasattr(args, "value") else []
    row = _ask(args, f"{change}_worker", id=args.id, values=values)
    if row["expires_at"] is None:
        until = "never expires"
    else:
        until = f"expires at {_when(row['expires_at'])}"
    said = CHANGED[change].format(**row, until=until, listed=" ".join(row["groups"]))
    if args.json:
        return print_json(row)
    return _print(said)


def _state(row: Row) -> str:
    if row["standing"] == "quarantined":
        return f"quarantined: {row['quarantine']}"
    if row["standing"] != "paired":
        return str(row["standing"])
    if not row["linked"]:
        return "away"

    if row["paused"]:
        return f"paused: {row['paused']}"
    return "linked"


def _rtt(row: Row) -> str:
    if row["rtt_ms"] is not None:
        return f"{row['rtt_ms']:.1f} ms"
    return "-"


# --- API keys ------------------------------------------------------------------------------------------------------


def create_key(args: argparse.Namespace) -> int:
    """`cloud-gateway keys create`: the only time that the key itself is shown."""
    options = {
        "offload": args.offload is not None,
        "groups": args.offload or [],
        "cache_group": args.cache_group,
        "operator": args.operator,
        "learn": args.learn,
    }
    row = _ask(args, "create_key", name=args.name, **options)
    if args.json:
        return print_json(row)

    print(row["key"])
    print(f"\nThis is API key {row['id']}; it is not stored and cannot be shown again.")
    groups = " ".join(row["groups"])
    allowed = f"on: workers of these groups may see its prompts: {groups}."
    print(f"Offloading is {allowed if row['offload'] else 'off: no worker sees its prompts.'}")
    return 0


def list_keys(args: argparse.Namespace) -> int:
    rows = _ask(args, "keys")["keys"]
    if args.json:
        return print_json({"keys": rows})
    if not rows:
        return _print("There are no API keys yet; 'cloud-gateway keys create' makes one.")

    table = []
    for r in rows:
        groups = " ".join(r["groups"]) or "no"
        times = map(_when, (r["created"], r["last_used"], r["revoked"]))
        table.append([r["id"], r["name"] or "-", groups, r["cache_group"] or "-", *times])

    return _print_table(["ID", "NAME", "OFFLOAD", "CACHE GROUP", "CREATED", "LAST USED", "REVOKED"], table)


def revoke_key(args: argparse.Namespace) -> int:
    row = _ask(args, "revoke_key", id=args.id)
    text = f"API key {row['id']} is revoked; a running gateway refuses it from now on."
    if args.json:
        return print_json(row)
    return _print(text)


# --- times ----------------------------------------------------------------------------------------------------------


def since(text: str, sign: int = -1) -> float:
    """The value of `--since` in Unix seconds: `90m`, `24h`, `7d`, or a date with or without a time."""
    if found := re.fullmatch(r"(\d{1,6})([mhd])", text):
        return time.time() + sign * int(found[1]) * {"m": 60, "h": 3600, "d": 86400}[found[2]]
    try:
        return dt.datetime.fromisoformat(text).timestamp()  # without a zone: this machine's
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no time: give 90m, 24h, 7d or 2026-11-20T08:00") from None


def expiry(text: str) -> float | None:
    """The time from which a pairing is refused: as `since`, but later than now by `90d`; `never`: None."""
    if text == "never":
        return None
    return since(text, 1)


# --- common --------------------------------------------------------------------------------------------------------


def control_socket(args: argparse.Namespace) -> Path:
    """The control socket of the gateway that the configuration names; it need not exist."""
    return folders.find_socket("gateway", config.given(args).daemon.state_dir)


def _ask(args: argparse.Namespace, method: str, **params: Any) -> Any:
    """Calls a handler of the running gateway; without one, the same handler on the gateway's files."""
    if is_running(path := control_socket(args)):
        return control.call(path, method, **params)

    from cloud_gateway.links.paired import PairedWorkers
    from cloud_gateway.process.control import Commands

    keys = _key_folder(args)
    handler: Any = Commands(PairedWorkers(keys), KeyRing(keys)).handlers()[method]
    return asyncio.run(handler(**params))


def is_running(path: Path) -> bool:
    """Whether a gateway listens there. One that refuses this user counts: the call that follows reports why."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            pass

    return True


def _key_folder(args: argparse.Namespace) -> Path:
    """The folder of ServerKeyStore, without loading its libraries."""
    return folders.state_dir("gateway", config.given(args).daemon.state_dir) / "keys"


def _when(unix_s: float | None) -> str:
    if unix_s is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def _print(text: str) -> int:
    print(text, flush=True)
    return 0


def print_json(value: object) -> int:
    """Prints one line; returns the exit code of a command that succeeded."""
    return _print(json.dumps(value))


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    cells = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0
