"""`edgespec peers`: who is there, and pairing with other daemons."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from functools import partial

from edgespec.shared import command
from edgespec.shared.address import parse_address
from edgespec.worker import commands, config
from edgespec.worker.part import WorkerVerb

_verb = partial(command.add_verb, WorkerVerb.configuration)


class PeersVerb:
    """The verb and its actions."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds them to the command line."""
        peers = _verb(verbs, "peers", _show, "show the other daemons on this campus, or pair with one")
        actions = peers.add_subparsers(dest="action", metavar="ACTION")
        _verb(actions, "invite", _invite, "show a one-time code for another daemon, and wait for it")
        meet = _verb(actions, "pair", _pair, "pair with the daemon that shows the code")
        meet.add_argument("address", nargs="?", metavar="ADDRESS", help="HOST:PORT; left out: it is searched for")
        meet.add_argument("code", metavar="CODE", help="the one-time code, as 4821-word-word-word-7305")
        forget = _verb(actions, "forget", _forget, "end the pairing with a peer")
        forget.add_argument("peer", metavar="ID", help="its id, first digits of it, or its name")


def _show(args: Namespace) -> int:
    from edgespec.parts.peer_relay import report

    return commands.ask(args, "peers", show=report.peers)


def _invite(args: Namespace) -> int:
    from edgespec.parts.peer_relay import report
    from edgespec.shared import control_client as control

    for event in control.stream(commands.worker_socket(args), "invite"):
        commands.say(args, event, report.invitation(event))
    return 0


def _pair(args: Namespace) -> int:
    from edgespec.core.pairing.exchange import Party
    from edgespec.core.pairing.messages import parse_code
    from edgespec.parts.peer_relay.addresses import PEER, PURPOSE
    from edgespec.parts.peer_relay.paired import PairedPeers
    from edgespec.parts.peer_relay.settings import DEFAULT_PEER_PORT
    from edgespec.shared.part import nearby_of

    settings = config.given(args)
    code = parse_code(args.code)
    keys = commands.key_store(args)
    address = None
    if args.address:
        address = parse_address(args.address, DEFAULT_PEER_PORT)

    me = Party(keys.identity(), config.worker_name(settings), purpose=PURPOSE)
    nearby = nearby_of(args.parts, settings)
    peer = commands.pair_at(code, me, PairedPeers(keys.folder).add, address, nearby, PEER)

    paired = {"peer": peer.name, "address": peer.address, "id": commands.shown_id(peer.key)}
    return commands.say(args, paired, f"Paired with the peer {peer.name} ({paired['id']}) at {peer.address}.")


def _forget(args: Namespace) -> int:
    from edgespec.parts.peer_relay.paired import PairedPeers

    return commands.end_pairing(args, PairedPeers, args.peer, "is no longer a peer of this machine.")
