"""`edgespec keys rotate`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction

from edgespec.shared import command
from edgespec.worker import commands
from edgespec.worker.part import WorkerVerb

TEXT = (
    "This machine's key {old} is replaced by {new}. Restart `edgespec run`: its gateway then takes the new key in "
    "the old one's place. Peers have to be paired again (`edgespec peers pair`)."
)


class RotateVerb:
    """The verb `keys`, and its action."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds them to the command line."""
        keys = verbs.add_parser("keys", help="rotate this machine's key", description="Rotate this machine's key.")
        actions = keys.add_subparsers(dest="what", required=True, metavar="ACTION")
        text = "make a new key, which gateways accept because the old one signs it"
        command.add_verb(WorkerVerb.configuration, actions, "rotate", _rotate, text)


def _rotate(args: Namespace) -> int:
    from edgespec.parts.rotate_keys.identity import rotate_identity

    statement = rotate_identity(commands.key_store(args))
    keys = {"old": commands.shown_id(statement.old_key), "new": commands.shown_id(statement.new_key)}
    return commands.say(args, keys, TEXT.format(**keys))
