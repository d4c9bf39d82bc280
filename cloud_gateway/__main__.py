"""The command `cloud-gateway`. Models and their libraries are loaded by `serve` only; the rest starts at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cloud_gateway.part import GatewayPart
from cloud_gateway.parts import all_parts
from cloud_gateway.process import commands
from edgespec.shared import command

EPILOG = "`cloud-gateway config` prints every setting with its reason; exit codes are those of sysexits.h."
_verb = partial(command.add_verb, "gateway.toml")


def build_parser() -> argparse.ArgumentParser:
    """The command line; each subcommand sets `run` to its function. Raises ConfigError."""
    parts = all_parts()
    parser: argparse.ArgumentParser = command.Parser(
        prog="cloud-gateway", description="Verifies drafts from paired workers and serves the chat API.", epilog=EPILOG
    )
    parser.add_argument("--version", action="version", version=commands.VERSION)
    parser.set_defaults(parts=parts)

    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    _add_serve(verbs, parts)
    link = _verb(verbs, "link", commands.link, "link workers for vLLM, without a target of one's own", json=False)
    link.add_argument("model", type=Path, help="the folder of the model that vLLM serves, or its tokenizer.json")
    link.add_argument("--link-port", type=int, metavar="N", help="port for workers; 0 takes a free one")
    link.add_argument("--board", type=Path, metavar="PATH", help="the socket for vLLM, such as one on a shared volume")
    link.add_argument(
        "--board-group", default="", metavar="GROUP",
        help="let the members of this group connect to that socket too: a vLLM of another user",
    )  # fmt: skip
    pair = _verb(verbs, "pair", commands.pair, "show a one-time code and wait for a worker to be paired with it")
    pair.add_argument(
        "--group", action="append", default=[], metavar="GROUP",
        help="put the worker into this group (may be given several times); without it `default`, or those it had",
    )  # fmt: skip

    _add_workers(verbs)
    _add_keys(verbs)
    status = _verb(verbs, "status", commands.status, "show what the running gateway is doing")
    status.add_argument("--watch", action="store_true", help="show it with rates and workers each second, until Ctrl-C")
    command.add_config_verb(verbs, "gateway.toml", parts)
    text = "measure which drafts pay here; the same as `edgespec tune`"
    command.add_forwarded_verb(verbs, "tune", text, "edgespec")
    command.add_shell_verbs(parser, verbs)

    for part in parts:
        for verb in part.verbs:
            verb.add(verbs)

    version = verbs.add_parser("version", help="show the version", description="Show the version.")
    version.set_defaults(run=commands.version)
    return parser


def _add_serve(verbs: argparse._SubParsersAction[argparse.ArgumentParser], parts: Sequence[GatewayPart]) -> None:
    serve = _verb(verbs, "serve", commands.serve, "run the gateway", json=False)
    serve.add_argument("--port", type=int, metavar="N", help="port of the chat API; 0 takes a free one")
    serve.add_argument("--link-port", type=int, metavar="N", help="port for workers; 0 takes a free one")
    for part in parts:
        for port in part.ports:
            serve.add_argument(f"--{port.table}-port", type=int, metavar="N", help=port.help)
    serve.add_argument(
        "--ready-file", type=Path, metavar="PATH", help="write the actual ports there, as JSON, when ready"
    )


def _add_workers(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "list, revoke, release, limit or group paired workers"
    workers = verbs.add_parser("workers", help=text, description=f"{text[0].upper()}{text[1:]}.").add_subparsers(
        dest="what", required=True, metavar="COMMAND"
    )
    _verb(workers, "list", commands.list_workers, "show the paired workers and their links")
    made = {}
    for verb, change, text in (
        ("revoke", "revoke", "end a worker's pairing and its link, until it is paired again"),
        ("release", "release", "end a worker's quarantine"),
        ("expire", "expire", "limit how long a worker's pairing is valid"),
        ("group", "regroup", "put a worker into these groups, and into no others"),
    ):
        made[verb] = _verb(workers, verb, partial(commands.change_worker, change), text)
        made[verb].add_argument("id", metavar="WORKER", help="its id, the beginning of it, or its name")
    when = "from now on 12h or 90d, a date, or `never`"
    made["expire"].add_argument("value", type=commands.expiry, metavar="WHEN", help=when)
    made["group"].add_argument("value", nargs="+", metavar="GROUP", help="such as `default`, `physics` or `trusted-2`")


def _add_keys(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "make, list or revoke API keys"
    keys = verbs.add_parser("keys", help=text, description=f"{text[0].upper()}{text[1:]}.").add_subparsers(
        dest="what", required=True, metavar="COMMAND"
    )
    create = _verb(keys, "create", commands.create_key, "make an API key, which is shown this once")
    create.add_argument("--name", default="", help="whose key it is, for the list")
    create.add_argument(
        "--offload",
        nargs="*",
        metavar="GROUP",
        help="let workers of these groups (without a name: `default`) draft for this key, and so see its prompts",
    )
    create.add_argument(
        "--cache-group",
        default="",
        metavar="NAME",
        help="share the prefix caches with the other keys of this group, whose users could then time what others asked",
    )
    create.add_argument(
        "--operator", action="store_true", help="show all workers with their names at `/ui` (docs/gateway.md)"
    )

    text = "let those workers also keep this key's prompts and completions, and learn from them (docs/learning.md)"
    create.add_argument("--learn", action="store_true", help=text)

    _verb(keys, "list", commands.list_keys, "show the API keys, without their secrets")
    revoke = _verb(keys, "revoke", commands.revoke_key, "refuse an API key from now on")
    revoke.add_argument("id", help="its id, or a name that no other valid key has")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    return command.run("cloud-gateway", build_parser, argv)


if __name__ == "__main__":
    sys.exit(main())
