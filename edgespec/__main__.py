"""The command `edgespec`: the worker's side. Models and their libraries are loaded by the commands that need them."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from edgespec import __version__
from edgespec.parts import all_parts
from edgespec.shared import command, logs
from edgespec.shared.part import nearby_of
from edgespec.worker import config
from edgespec.worker.part import WorkerPart, always

VERSION = f"edgespec {__version__} (Python {platform.python_version()})"
EPILOG = "`edgespec config` prints every setting with its reason; exit codes are those of sysexits.h."
LAB = {
    "compare": "try other policies on a gateway's traces, in the simulator",
    "demo": "show gateway and worker together on this machine",
    "plan": "say what a worker would bring, from the times of target, draft and link",
    "tune": "measure every source of drafts here, and recommend a gateway's settings",
}
"""Verbs of the distribution edgespec-lab, which are listed also if it is not installed."""
_verb = partial(command.add_verb, "worker.toml")


def build_parser() -> argparse.ArgumentParser:
    """The command line; each subcommand sets `run` to its function. Raises ConfigError."""
    parts = all_parts()
    parser: argparse.ArgumentParser = command.Parser(
        prog="edgespec", description="Drafts for a paired gateway on this machine's idle time.", epilog=EPILOG
    )
    parser.add_argument("--version", action="version", version=VERSION)
    parser.set_defaults(parts=parts)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    run = _verb(verbs, "run", _run, "run the worker", json=False)
    run.add_argument("--end-with-input", action="store_true", help="stop when standard input ends, as a child process")
    run.add_argument("--always", action="store_true", help="draft at any time, also if a part would step aside")
    run.add_argument("--no-search", action="store_true", help="dial known addresses alone, whatever a part finds")
    pair = _verb(verbs, "pair", _pair, "pair this machine with a gateway, by the code that its operator shows")
    pair.add_argument("address", nargs="?", metavar="ADDRESS", help="wss://HOST:PORT; left out: it is searched for")
    pair.set_defaults(pair_there=None)
    for part in parts:
        for option in part.pairing:
            pair.add_argument(option.flag, dest="pair_there", action="store_const", const=option.pair, help=option.help)
    pair.add_argument("code", metavar="CODE", help="the one-time code, as 4821-word-word-word-7305")
    unpair = _verb(verbs, "unpair", _unpair, "end the pairing with a gateway, at this machine")
    unpair.add_argument("gateway", metavar="GATEWAY", help="its id, first digits of it, or its name")
    status = _verb(verbs, "status", _status, "show what the running worker drafted, and when it stepped aside and why")
    status.add_argument("--watch", action="store_true", help="show it again at each change, until Ctrl-C")
    pause = _verb(verbs, "pause", _pause, "stop drafting until `edgespec resume`")
    pause.add_argument("--reason", default="paused by its admin", help="the reason that the gateway's operator sees")
    _verb(verbs, "resume", _resume, "draft again")
    command.add_config_verb(verbs, "worker.toml", parts)
    for part in parts:
        for verb in part.verbs:
            verb.add(verbs)
    command.add_missing_verbs(verbs, LAB)
    command.add_shell_verbs(parser, verbs)
    verbs.add_parser("version", help="show the version", description="Show the version.").set_defaults(run=_version)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    return command.run("edgespec", build_parser, argv)


def _run(args: argparse.Namespace) -> int:
    settings = config.given(args)

    from edgespec.worker import start

    parts: Sequence[WorkerPart] = args.parts
    if args.always:
        parts = [replace(part, presence=always) for part in parts]
    if args.no_search:
        parts = [replace(part, nearby=None) for part in parts]

    ends_with: int | None = None
    if args.end_with_input:
        ends_with = sys.stdin.fileno()

    handlers = [name for part in parts for name in part.handlers]
    with logs.policy(settings.daemon.log_level):
        asyncio.run(start.run(settings, ends_with, partial(start.make_service, parts=parts), handlers))

    return 0


def _pair(args: argparse.Namespace) -> int:
    from edgespec.core.pairing.exchange import Party
    from edgespec.core.pairing.messages import parse_code
    from edgespec.shared.address import parse_address
    from edgespec.shared.nearby import GATEWAY
    from edgespec.shared.paired import PairedGateways
    from edgespec.worker import commands

    settings = config.given(args)
    code = parse_code(args.code)
    keys = commands.key_store(args)
    name = config.worker_name(settings)
    where = args.address or settings.gateway.address
    if args.pair_there is not None:
        gateway = asyncio.run(args.pair_there(keys, name, code))
    else:
        address = parse_address(where) if where else None
        me = Party(keys.identity(), name)
        nearby = nearby_of(args.parts, settings)
        gateway = commands.pair_at(code, me, PairedGateways(keys.folder).add, address, nearby, GATEWAY)

    me_id = commands.shown_id(keys.identity().public)
    paired = {"gateway": gateway.name, "address": gateway.address, "key": gateway.key.hex(), "id": me_id}
    at = gateway.address or "the other end of a relay"
    text = (
        f"Paired with {gateway.name} at {at}, which lists this machine as {me_id}. Start drafting with `edgespec run`."
    )
    return commands.say(args, paired, text)


def _unpair(args: argparse.Namespace) -> int:
    from edgespec.shared.paired import PairedGateways
    from edgespec.worker import commands

    later = "is no longer a gateway of this machine; a worker that runs drafts for it until it is restarted."
    return commands.end_pairing(args, PairedGateways, args.gateway, later)


def _status(args: argparse.Namespace) -> int:
    from edgespec.worker import commands, report

    if not args.watch:
        return commands.ask(args, "status", show=partial(report.text, parts=args.parts))

    from edgespec.shared import control_client as control

    states = control.stream(commands.worker_socket(args), "watch")
    if args.json:
        for state in states:
            print(json.dumps(state), flush=True)
    else:
        report.show_live(states, args.parts)

    return 0


def _pause(args: argparse.Namespace) -> int:
    from edgespec.worker import commands, report

    return commands.ask(args, "pause", show=report.pause, reason=args.reason)


def _resume(args: argparse.Namespace) -> int:
    from edgespec.worker import commands, report

    return commands.ask(args, "resume", show=report.pause)


def _version(args: argparse.Namespace) -> int:
    print(VERSION)
    return 0


if __name__ == "__main__":
    sys.exit(main())
