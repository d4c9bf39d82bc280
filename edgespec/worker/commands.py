"""What the verbs of `edgespec` have in common: the stored keys, the running worker, pairing, and printing.

Importing it loads no cryptography and no WebSockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgespec.core.errors import NoGatewayError
from edgespec.shared import folders
from edgespec.worker import config

if TYPE_CHECKING:
    from edgespec.core.pairing.exchange import Party
    from edgespec.core.pairing.messages import Code
    from edgespec.shared.address import Address
    from edgespec.shared.keystore import KeyStore
    from edgespec.shared.nearby import Kind, Nearby
    from edgespec.shared.paired import PairedMachines

Record = TypeVar("Record")


def key_store(args: argparse.Namespace) -> KeyStore:
    """This machine's keys. Raises ConfigError, KeyStoreError."""
    from edgespec.shared.keystore import KeyStore  # cryptography

    return KeyStore(folders.state_dir("worker", config.given(args).daemon.state_dir))


def worker_socket(args: argparse.Namespace) -> Path:
    """The socket of the running worker. Raises ConfigError."""
    return folders.find_socket("worker", config.given(args).daemon.state_dir)


def say(args: argparse.Namespace, result: object, text: str) -> int:
    """Prints a result: with `--json` as JSON, else as this text. Returns 0."""
    if args.json:
        text = json.dumps(result)
    print(text, flush=True)
    return 0


def ask(args: argparse.Namespace, method: str, show: Callable[[Any], str], **params: str) -> int:
    """Calls the running worker over its control socket and prints the result."""
    from edgespec.shared import control_client as control

    answer = control.call(worker_socket(args), method, timeout_s=10.0, **params)
    text = ""
    if not args.json:
        text = show(answer)
    return say(args, answer, text)


def shown_id(key: bytes) -> str:
    """The id of a key as lists show it."""
    from edgespec.core.protocol.names import key_id

    return key_id(key)


def pair_at(
    code: Code,
    me: Party,
    store: Callable[..., Record],
    address: Address | None,
    nearby: Nearby,
    kind: Kind,
) -> Record:
    """Pairs at the address, or without one with a machine of this kind that is found.

    Raises NoGatewayError, PairingError, KeyStoreError.
    """
    from edgespec.worker.pair import pair

    if address is not None:
        return asyncio.run(pair(code, me, store, [address]))

    finder = nearby.finder(kind)
    if finder is None:
        raise NoGatewayError(f"Nothing here searches networks: give the address, `{kind.command} ADDRESS CODE`.")
    return asyncio.run(pair(code, me, store, finder=finder))


def end_pairing(args: argparse.Namespace, paired: type[PairedMachines[Any]], name: str, what: str) -> int:
    """Removes the machine of this id or name from a list; `what` follows its name in the text that is printed.

    Raises PairingError, KeyStoreError.
    """
    machines = paired(key_store(args).folder)
    machine = machines.find(name)
    machines.forget(machine.key)
    gone = {"forgotten": machine.name, "id": shown_id(machine.key)}
    return say(args, gone, f"{machine.name} ({gone['id']}) {what}")
