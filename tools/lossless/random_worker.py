"""`python -m tools.lossless.random_worker --config worker.toml`: a paired worker that drafts nothing but nonsense.

It links as an honest worker does and answers each `Open` and `Commit` with a tree of valid shape on the newest prefix:
random tokens in random places, at probabilities that it makes up. Half of the tokens stand in the text already, so that
a few are right by luck and the target's walk enters the tree.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.core.protocol.digests import Prefix
from edgespec.core.protocol.handshake import WorkerIdentity
from edgespec.core.protocol.messages import MAX_DEPTH, ROOT, Close, Commit, Open, ToWorker, Tree
from edgespec.parts import all_parts
from edgespec.shared import folders
from edgespec.shared.address import Address, parse_address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.models import model_digest, resolve_model
from edgespec.shared.paired import PairedGateways
from edgespec.shared.vocabfiles import gguf_metadata, gguf_vocabulary
from edgespec.worker import config
from edgespec.worker.link import Handler, Link, keep_linked
from edgespec.worker.service import paired_gateway
from edgespec_lab import verbs

MAX_NODES = 24
MAX_MILLINATS = 3000
"""Cost of the worst child relative to its parent: a probability of 5 %."""


@dataclass(slots=True)
class Request:
    """One open request: its text so far, and the next free node id."""

    opening: Open
    prefix: Prefix = field(init=False)
    next_id: int = 1

    def __post_init__(self) -> None:
        self.prefix = Prefix(self.opening.tokens)

    def nonsense(self, rng: random.Random, vocab_size: int) -> Tree:
        """A tree of valid shape after the present prefix."""
        parents: list[int] = []
        tokens: list[int] = []
        costs: list[int] = []
        depths = [0]
        for i in range(rng.randint(2, MAX_NODES)):
            above = rng.randint(0, i)  # 0 is the root, n the n-th node
            token = rng.choice(self.prefix.tokens) if rng.random() < 0.5 else rng.randrange(vocab_size)
            parent = self.next_id + above - 1 if above else ROOT
            if depths[above] >= MAX_DEPTH or (parent, token) in zip(parents, tokens, strict=True):
                above = 0
                parent = ROOT
                token = _unused(rng, vocab_size, tokens)
            parents.append(parent)
            tokens.append(token)
            costs.append((costs[above - 1] if above else 0) + rng.randint(0, MAX_MILLINATS))
            depths.append(depths[above] + 1)
        entropies = [rng.randint(0, MAX_MILLINATS) for _ in tokens]
        first = self.next_id
        self.next_id = self.next_id + len(tokens)
        opening = self.opening
        prefix = self.prefix
        return Tree(
            opening.request, opening.epoch, len(prefix), prefix.digest, first, parents, tokens, costs, entropies
        )


def _unused(rng: random.Random, vocab_size: int, tokens: Sequence[int]) -> int:
    while (token := rng.randrange(vocab_size)) in tokens:
        pass
    return token


class RandomWorker(Handler):
    """The link's `Handler`: sends a random tree for every message."""

    def __init__(self, rng: random.Random, vocab_size: int) -> None:
        self._rng = rng
        self._vocab_size = vocab_size
        self._requests: dict[int, Request] = {}
        self._link: Link | None = None

    def on_up(self, link: Link) -> None:
        """The link is authenticated."""
        self._link = link

    def on_message(self, message: ToWorker) -> None:
        """ToWorker from the gateway."""
        match message:
            case Open():
                request = self._requests[message.request] = Request(message)
                self._answer(request)
            case Commit() if message.request in self._requests:
                request = self._requests[message.request]
                request.prefix.extend(message.tokens)
                self._answer(request)
            case Close():
                self._requests.pop(message.request, None)

    def on_down(self, why: str) -> None:
        """The link is gone."""
        self._link = None
        self._requests.clear()

    def _answer(self, request: Request) -> None:
        if self._link is not None and len(request.prefix) >= request.opening.prompt_len:
            self._link.send(request.nonsense(self._rng, self._vocab_size))


async def serve(settings: config.WorkerSettings, seed: int) -> None:
    """Links with the configured worker's key and stays until it is cancelled. Raises PairingError, ModelError."""
    store = KeyStore(folders.state_dir("worker", settings.daemon.state_dir))
    gateway = paired_gateway(PairedGateways(store.folder))
    model = resolve_model(settings.draft.model)
    vocab_size = len(gguf_metadata(model)["tokenizer.ggml.tokens"])
    me = WorkerIdentity(
        store.identity(), config.worker_name(settings), gguf_vocabulary(model).digest,
        model_digest(model), vocab_size, 1,
    )  # fmt: skip

    async def addresses() -> Sequence[Address]:
        return [parse_address(settings.gateway.address or gateway.address)]

    rng = random.Random(seed)
    await keep_linked(addresses, me, gateway.pin, RandomWorker(rng, vocab_size), rng=rng)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.lossless.random_worker", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="worker.toml of a worker that is paired")
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(run=draft)
    return verbs.run(parser, argv)


def draft(options: argparse.Namespace) -> int:
    """Drafts until it is ended. Raises EdgespecError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    asyncio.run(serve(config.load(options.config, all_parts()), options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
