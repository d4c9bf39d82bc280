"""`cloud-gateway identity rotate`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace, _SubParsersAction

from cloud_gateway.part import GatewayVerb
from cloud_gateway.process.config import given
from edgespec.shared import command, folders


class IdentityVerb:
    """The verb `identity`, and its action."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds them to the command line."""
        text = "rotate the gateway's own keys"
        identity = verbs.add_parser("identity", help=text, description=f"{text[0].upper()}{text[1:]}.")
        actions = identity.add_subparsers(dest="what", required=True, metavar="COMMAND")
        text = "make new keys, which the old one signs for the workers"
        command.add_verb(GatewayVerb.configuration, actions, "rotate", _rotate, text)


def _rotate(args: Namespace) -> int:
    """A running gateway has the new keys once it is restarted."""
    from cloud_gateway.parts.rotate_keys.identity import rotate_gateway
    from edgespec.core.protocol.handshake import GRACE_S
    from edgespec.core.protocol.names import key_id  # cryptography
    from edgespec.shared.server_keys import ServerKeyStore

    state = folders.state_dir("gateway", given(args).daemon.state_dir)
    statement = rotate_gateway(ServerKeyStore(state))
    old = key_id(statement.old_key)
    new = key_id(statement.new_key)
    if args.json:
        print(json.dumps({"old": old, "new": new}))
        return 0

    print(
        f"The gateway's identity {old} is replaced by {new}, and its TLS key by another one. Restart the gateway: each "
        f"worker that has linked within {GRACE_S / 86400:.0f} days then takes the new keys at its next link; others "
        "have to be paired again."
    )
    return 0
