"""The command `edgespec`: the worker's side. Models and their libraries are loaded by the commands that need them."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgespec import __version__
from edgespec.core.errors import ConfigError
from edgespec.parts import all_parts
from edgespec.shared import command, folders, logs
from edgespec.shared.address import DEFAULT_PEER_PORT, Address, parse_address
from edgespec.worker import config, report
from edgespec.worker.config import WorkerSettings
from edgespec.worker.part import WorkerPart, always

if TYPE_CHECKING:
    from edgespec.core.pairing.exchange import Purpose
    from edgespec.core.pairing.messages import Code
    from edgespec.shared.keystore import KeyStore
    from edgespec.shared.paired import PairedMachines
    from edgespec.worker.discovery import Browser

VERSION = f"edgespec {__version__} (Python {platform.python_version()})"
EPILOG = "`edgespec config` prints every setting with its reason; exit codes are those of sysexits.h."
LAB = {
    "compare": "try other policies on a gateway's traces, in the simulator",
    "demo": "show gateway and worker together on this machine",
    "plan": "say what a worker would bring, from the times of target, draft and link",
    "tune": "measure every source of drafts here, and recommend a gateway's settings",
}
"""Verbs of the distribution edgespec-lab, which are listed also if it is not installed."""
Record = TypeVar("Record")
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
    pair = _verb(verbs, "pair", _pair, "pair this machine with a gateway, by the code that its operator shows")
    pair.add_argument("address", nargs="?", metavar="ADDRESS", help="wss://HOST:PORT; left out: found by mDNS")
    pair.add_argument(
        "--relay", action="store_true", help="reach the gateway through a paired peer that is linked to it"
    )
    pair.add_argument("code", metavar="CODE", help="the one-time code, as 4821-word-word-word-7305")
    unpair = _verb(verbs, "unpair", _unpair, "end the pairing with a gateway, at this machine")
    unpair.add_argument("gateway", metavar="GATEWAY", help="its id, first digits of it, or its name")
    status = _verb(verbs, "status", _status, "show what the running worker drafted, and when it stepped aside and why")
    status.add_argument("--watch", action="store_true", help="show it again at each change, until Ctrl-C")
    pause = _verb(verbs, "pause", _pause, "stop drafting until `edgespec resume`")
    pause.add_argument("--reason", default="paused by its admin", help="the reason that the gateway's operator sees")
    _verb(verbs, "resume", _resume, "draft again")
    _add_upkeep(verbs)
    command.add_config_verb(verbs, "worker.toml", parts)
    peers = _verb(verbs, "peers", _peers, "show the other daemons on this campus, or pair with one")
    actions = peers.add_subparsers(dest="action", metavar="ACTION")
    _verb(actions, "invite", _invite, "show a one-time code for another daemon, and wait for it")
    meet = _verb(actions, "pair", _pair_peer, "pair with the daemon that shows the code")
    meet.add_argument("address", nargs="?", metavar="ADDRESS", help="HOST:PORT; left out: found by mDNS")
    meet.add_argument("code", metavar="CODE", help="the one-time code, as 4821-word-word-word-7305")
    forget = _verb(actions, "forget", _forget, "end the pairing with a peer")
    forget.add_argument("peer", metavar="ID", help="its id, first digits of it, or its name")
    for part in parts:
        for verb in part.verbs:
            verb.add(verbs)
    _add_models(verbs)
    _add_gateway_verbs(verbs)
    command.add_missing_verbs(verbs, LAB)
    command.add_shell_verbs(parser, verbs)
    verbs.add_parser("version", help="show the version", description="Show the version.").set_defaults(run=_version)
    return parser


def _add_models(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from edgespec.models import command as models

    text = "list models, fetch them, and make drafts of them"
    parser = verbs.add_parser("models", help=text, description=(models.__doc__ or "").partition("\n")[0])
    actions = models.add_model_verbs(parser, _configured_models)
    check = _verb(actions, "check", _check_model, "load a model in llama.cpp and check what it computes")
    check.add_argument("model", metavar="MODEL", help="a GGUF file, or a fetched name")
    check.add_argument("draft", metavar="DRAFT", nargs="?", help=argparse.SUPPRESS)


def _configured_models(args: argparse.Namespace) -> dict[str, str]:
    """The models of worker.toml, if there is one."""
    if not folders.config_file("worker").exists():
        return {}
    return {"draft.model": config.load(None, args.parts).draft.model}


def _check_model(args: argparse.Namespace) -> int:
    from edgespec.models import command as models

    if args.draft is not None:
        pair = f"{args.model} {args.draft}"
        raise ConfigError(f"Whether two models pair is checked by a gateway: run `cloud-gateway models check {pair}`.")
    return models.try_model(args.parts, args.model, config.given(args).draft.n_gpu_layers, args.json)


def _add_gateway_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb that a worker's admin has in common with `cloud-gateway`, which reads a gateway's traces."""
    text = "look at traces of a gateway: who signed, and what was decided; the same as `cloud-gateway replay`"
    command.add_forwarded_verb(verbs, "replay", text, "cloud_gateway")


def _add_upkeep(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    keys = verbs.add_parser("keys", help="rotate this machine's key", description="Rotate this machine's key.")
    actions = keys.add_subparsers(dest="what", required=True, metavar="ACTION")
    _verb(actions, "rotate", _rotate, "make a new key, which gateways accept because the old one signs it")
    command.add_service_verbs(_verb, verbs, "worker", _install, _uninstall)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    return command.run("edgespec", build_parser, argv)


def _run(args: argparse.Namespace) -> int:
    settings = config.given(args)
    from edgespec.worker import start

    parts: Sequence[WorkerPart] = args.parts
    if args.always:
        parts = [replace(part, presence=always) for part in parts]

    ends_with: int | None = None
    if args.end_with_input:
        ends_with = sys.stdin.fileno()

    with logs.policy(settings.daemon.log_level):
        asyncio.run(start.run(settings, ends_with, partial(start.make_service, parts=parts)))

    return 0


def _store(args: argparse.Namespace) -> KeyStore:
    from edgespec.shared.keystore import KeyStore  # cryptography

    return KeyStore(folders.state_dir("worker", config.given(args).daemon.state_dir))


def _socket(args: argparse.Namespace) -> Path:
    return folders.find_socket("worker", config.given(args).daemon.state_dir)


def _say(args: argparse.Namespace, found: object, text: str) -> int:
    """Prints what was found, with `--json` as that, else as this text."""
    print(json.dumps(found) if args.json else text, flush=True)
    return 0


def _id(key: bytes) -> str:
    from edgespec.core.protocol.names import key_id

    return key_id(key)


def _pair(args: argparse.Namespace) -> int:
    from edgespec.core.pairing.messages import parse_code
    from edgespec.shared.paired import PairedGateways
    from edgespec.worker.pair import pair_through_peers

    settings = config.given(args)
    code = parse_code(args.code)
    store = _store(args)
    where = args.address or settings.gateway.address
    if args.relay:
        gateway = asyncio.run(pair_through_peers(store, config.worker_name(settings), code))
    else:
        from edgespec.worker.discovery import Browser

        address = parse_address(where) if where else None
        browser = Browser(networks=settings.gateway.networks)
        gateway = _paired(store, settings, code, PairedGateways(store.folder).add, address, browser, "link")
    me = _id(store.identity().public)
    paired = {"gateway": gateway.name, "address": gateway.address, "key": gateway.key.hex(), "id": me}
    at = gateway.address or "the other end of a relay"
    text = f"Paired with {gateway.name} at {at}, which lists this machine as {me}. Start drafting with `edgespec run`."
    return _say(args, paired, text)


def _pair_peer(args: argparse.Namespace) -> int:
    from edgespec.core.pairing.messages import parse_code
    from edgespec.shared.mdns import PEER
    from edgespec.shared.paired import PairedPeers
    from edgespec.worker.discovery import Browser

    settings = config.given(args)
    code = parse_code(args.code)
    store = _store(args)
    if args.address:
        address = parse_address(args.address, DEFAULT_PEER_PORT)
    else:
        address = None
    peer = _paired(store, settings, code, PairedPeers(store.folder).add, address, Browser(kind=PEER), "peer")
    paired = {"peer": peer.name, "address": peer.address, "id": _id(peer.key)}
    return _say(args, paired, f"Paired with the peer {peer.name} ({paired['id']}) at {peer.address}.")


def _paired(
    keys: KeyStore, settings: WorkerSettings, code: Code, store: Callable[..., Record], address: Address | None,
    browser: Browser, purpose: Purpose,
) -> Record:  # fmt: skip
    """Pairs at the address, or with what mDNS finds. Raises NoGatewayError, PairingError, KeyStoreError."""
    from edgespec.core.pairing.exchange import Party
    from edgespec.worker.pair import pair

    me = Party(keys.identity(), config.worker_name(settings), purpose=purpose)
    return asyncio.run(pair(code, me, store, [address] if address else [], None if address else browser))


def _peers(args: argparse.Namespace) -> int:
    return _ask(args, "peers", show=report.peers)


def _invite(args: argparse.Namespace) -> int:
    from edgespec.shared import control_client as control

    for event in control.stream(_socket(args), "invite"):
        _say(args, event, report.invitation(event))
    return 0


def _forget(args: argparse.Namespace) -> int:
    from edgespec.shared.paired import PairedPeers

    return _end_pairing(args, PairedPeers, args.peer, "is no longer a peer of this machine.")


def _unpair(args: argparse.Namespace) -> int:
    from edgespec.shared.paired import PairedGateways

    later = "is no longer a gateway of this machine; a worker that runs drafts for it until it is restarted."
    return _end_pairing(args, PairedGateways, args.gateway, later)


def _end_pairing(args: argparse.Namespace, store: type[PairedMachines[Any]], name: str, what: str) -> int:
    paired = store(_store(args).folder)
    machine = paired.find(name)
    paired.forget(machine.key)
    gone = {"forgotten": machine.name, "id": _id(machine.key)}
    return _say(args, gone, f"{machine.name} ({gone['id']}) {what}")


def _rotate(args: argparse.Namespace) -> int:
    made = _store(args).rotate()
    keys = {"old": _id(made.old_key), "new": _id(made.new_key)}
    text = (
        "This machine's key {old} is replaced by {new}. Restart `edgespec run`: its gateway then takes the new key in "
        "the old one's place. Peers have to be paired again (`edgespec peers pair`)."
    )
    return _say(args, keys, text.format(**keys))


def _status(args: argparse.Namespace) -> int:
    if not args.watch:
        return _ask(args, "status", show=partial(report.text, parts=args.parts))

    from edgespec.shared import control_client as control

    states = control.stream(_socket(args), "watch")
    if args.json:
        for state in states:
            print(json.dumps(state), flush=True)
    else:
        report.show_live(states, args.parts)
    return 0


def _pause(args: argparse.Namespace) -> int:
    return _ask(args, "pause", show=report.pause, reason=args.reason)


def _resume(args: argparse.Namespace) -> int:
    return _ask(args, "resume", show=report.pause)


def _install(args: argparse.Namespace) -> int:
    from edgespec.shared import unit

    models = [config.given(args).draft.model]
    unit.WORKER.install(args.config, models, user=args.user, dry_run=args.dry_run)
    return 0


def _uninstall(args: argparse.Namespace) -> int:
    from edgespec.shared import unit

    unit.WORKER.uninstall(config.given(args).daemon.state_dir, user=args.user, dry_run=args.dry_run)
    return 0


def _ask(args: argparse.Namespace, method: str, show: Callable[[Any], str], **params: str) -> int:
    """Calls the running worker over its control socket and prints the result."""
    from edgespec.shared import control_client as control

    answer = control.call(_socket(args), method, timeout_s=10.0, **params)
    return _say(args, answer, "" if args.json else show(answer))


def _version(args: argparse.Namespace) -> int:
    print(VERSION)
    return 0


if __name__ == "__main__":
    sys.exit(main())
