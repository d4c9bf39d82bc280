"""`cloud-gateway learning list`, `allow KEY` and `withdraw KEY`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from functools import partial

from cloud_gateway.auth import KeyRing
from cloud_gateway.part import GatewayVerb
from cloud_gateway.process import commands
from cloud_gateway.process.config import given
from edgespec.shared import command, folders
from edgespec.shared import control_client as control

ALLOWED = "Workers of its groups may keep the texts of API key {key}, and learn from them, from now on."
WITHDRAWN = "Workers may not learn from API key {key} any more. They delete its texts when they are sent this."


class LearningVerb:
    """The verb `learning`, and its actions."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds them to the command line."""
        text = "show or change from which API keys' texts workers may learn"
        learning = verbs.add_parser("learning", help=text, description=f"{text[0].upper()}{text[1:]}.")
        actions = learning.add_subparsers(dest="what", required=True, metavar="COMMAND")
        add = partial(command.add_verb, GatewayVerb.configuration, actions)
        add("list", show_consents, "show the API keys that consented to learning")
        for name, learn, text in (
            ("allow", True, "let workers keep an API key's texts and learn from them, with its owner's consent"),
            ("withdraw", False, "end an API key's consent: workers delete its texts and what they learnt from them"),
        ):
            add(name, partial(change_consent, learn), text).add_argument("key", help="its id, or its name alone")


def show_consents(args: Namespace) -> int:
    """Prints a line for each key that consented. Raises KeyStoreError."""
    keys = [key for key in _ring(args).all() if key.learn and key.revoked is None]
    if args.json:
        commands.print_json({"keys": [key.id for key in keys]})
        return 0

    if not keys:
        print("No API key consented to learning.")
    for key in keys:
        print(f"{key.id}  {key.name or '-':20}  {' '.join(key.groups)}")
    return 0


def change_consent(learn: bool, args: Namespace) -> int:
    """Allows or withdraws. Raises KeyStoreError if the key is unknown, ambiguous, or not offloaded."""
    path = commands.control_socket(args)
    if commands.is_running(path):
        key = control.call(path, "learning", key=args.key, learn=learn)["key"]
    else:
        from cloud_gateway.parts.healing.consents import set_consent

        key = set_consent(_ring(args), args.key, learn).id

    if args.json:
        commands.print_json({"key": key, "learn": learn})
    elif learn:
        print(ALLOWED.format(key=key))
    else:
        print(WITHDRAWN.format(key=key))
    return 0


def _ring(args: Namespace) -> KeyRing:
    return KeyRing(folders.state_dir("gateway", given(args).daemon.state_dir) / "keys")
