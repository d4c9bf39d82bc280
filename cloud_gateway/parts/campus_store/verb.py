"""`cloud-gateway store status` and `cloud-gateway store forget KEY`."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloud_gateway.auth import KeyRing
from cloud_gateway.part import GatewayVerb
from cloud_gateway.process import commands
from cloud_gateway.process.config import given
from edgespec.core.errors import KeyStoreError
from edgespec.shared import command, folders
from edgespec.shared import control_client as control

FOLDER = "campus_store"
"""In the gateway's state folder."""
LINE = "{:10}  {:20}  {:>8}  {:>9}  {:>9}  {}"


class StoreVerb:
    """The verb `store`, and its actions."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds them to the command line."""
        text = "show or delete the completions that are stored to draft from"
        store = verbs.add_parser("store", help=text, description=f"{text[0].upper()}{text[1:]}.")
        actions = store.add_subparsers(dest="what", required=True, metavar="COMMAND")
        command.add_verb(
            GatewayVerb.configuration, actions, "status", show_store, "show how much is stored of each API key"
        )
        forget = command.add_verb(
            GatewayVerb.configuration, actions, "forget", forget_key, "delete what is stored of an API key"
        )
        forget.add_argument("key", help="id or name of the API key")


def show_store(args: Namespace) -> int:
    """Prints a row for each key. Without a running gateway, what is on disk."""
    rows = _rows(args)
    names = {key.id: key.name for key in _ring(args).all()}
    if args.json:
        commands.print_json({"keys": rows})
        return 0
    if not rows:
        print("Nothing is stored.")
        return 0

    print(LINE.format("KEY", "NAME", "TEXTS", "MEMORY", "DISK", "OLDEST"))
    for row in rows:
        texts = "-" if row["texts"] is None else row["texts"]
        oldest = "-" if row["oldest"] is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(row["oldest"]))
        sizes = (f"{row[name] / 2**20:.1f} MB" for name in ("memory_bytes", "disk_bytes"))
        print(LINE.format(row["key"], names.get(row["key"], "-")[:20], texts, *sizes, oldest))
    return 0


def forget_key(args: Namespace) -> int:
    """Deletes the texts of one key from memory and disk. Raises KeyStoreError if the key is unknown or ambiguous."""
    key = _named(args.key, _rows(args), _ring(args))
    path = commands.control_socket(args)
    if commands.is_running(path):
        texts = control.call(path, "store_forget", key=key)["texts"]
        said = f"{texts} texts of API key {key} are deleted from memory and disk."
    else:
        from cloud_gateway.parts.campus_store import disk

        texts = None
        disk.delete_texts(_folder(args), key)
        said = f"The texts of API key {key} are deleted from the disk."

    if args.json:
        commands.print_json({"key": key, "texts": texts})
    else:
        print(said)
    return 0


def _rows(args: Namespace) -> Sequence[Mapping[str, Any]]:
    path = commands.control_socket(args)
    if commands.is_running(path):
        rows: Sequence[Mapping[str, Any]] = control.call(path, "store_status")["keys"]
        return rows

    from cloud_gateway.parts.campus_store import disk

    folder = _folder(args)
    return [
        {"key": key, "texts": None, "memory_bytes": 0, "disk_bytes": disk.bytes_of(folder, key), "oldest": None}
        for key in disk.keys_in(folder)
    ]


def _named(text: str, rows: Sequence[Mapping[str, Any]], ring: KeyRing) -> str:
    """The id of the key of this id or name. Raises KeyStoreError."""
    stored = [row["key"] for row in rows]
    keys = ring.all()
    if text in stored or text in [key.id for key in keys]:
        return text

    named = [key.id for key in keys if key.name == text]
    if len(named) > 1:
        raise KeyStoreError(f"{len(named)} API keys are named '{text}': {', '.join(named)}; give one's id.")
    if not named:
        raise KeyStoreError(f"there is no API key '{text}'; 'cloud-gateway store status' shows what is stored.")
    return named[0]


def _state(args: Namespace) -> Path:
    return folders.state_dir("gateway", given(args).daemon.state_dir)


def _folder(args: Namespace) -> Path:
    return _state(args) / FOLDER


def _ring(args: Namespace) -> KeyRing:
    return KeyRing(_state(args) / "keys")
