"""The gateway whose target is computed by vLLM: `cloud-gateway serve` with `target.engine = "vllm"` (README.md)."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from cloud_gateway.api import ServedModel
from cloud_gateway.core.limits.visits import QUEUE_LIMIT
from cloud_gateway.core.policies import registry
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.server import Links
from cloud_gateway.models.target_model.load import folder_digest, load_tokenizer
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import LoadedModels, choices, fingerprint, make_grammars, offer_of
from cloud_gateway.process.serve import Gateway
from cloud_gateway.process.targets import Plan
from edgespec.core.errors import ConfigError, ModelError
from edgespec.shared import folders
from edgespec.shared.hf_vocabulary import hf_vocabulary, json_object
from edgespec.shared.models import resolve_model
from edgespec_vllm.gateway.bodies import REFUSES, SentGrammars
from edgespec_vllm.gateway.remote import RemoteEngine
from edgespec_vllm.gateway.same import check_same
from edgespec_vllm.gateway.server import Server
from edgespec_vllm.hook import BOARD
from edgespec_vllm.link.process import BOARD as BOARD_FILE
from edgespec_vllm.link.server import BoardServer
from edgespec_vllm.link.streams import Streams

MAX_DRAFTS = 64
"""A worker's levels."""


class VllmGateway(Gateway):
    """Without models of its own: neither a local draft nor the live page nor traces."""

    def check(self) -> Plan:
        """Raises ModelError, ConfigError."""
        for key in self._given_without_effect():
            raise ConfigError(f"`{key}` has no effect with vLLM as the engine: leave it out.")
        path = resolve_model(self.settings.target.model)
        if not (path / "config.json").is_file():
            raise ModelError(f"`target.model` has to be the folder that vLLM serves, and {path} is none.")
        return Plan(path, self.settings.target.engine, 0)

    def _given_without_effect(self) -> Iterator[str]:
        """Settings, dotted, that need the gateway's own engine, and are not their default."""
        settings = self.settings
        for part in self.parts:
            for key in part.own_engine_only:
                table, _, name = key.partition(".")
                section = getattr(settings, table)
                if getattr(section, name) != getattr(type(section)(), name):
                    yield key

    @cached_property
    def drafts(self) -> bool:
        """Whether vLLM verifies drafts of workers: unless `policy.name` is one that asks none."""
        return registry.make(self.settings.policy, policies=self.choices.policies).asks_workers

    def load(self, plan: Plan) -> LoadedModels:
        """The tokenizer alone. Raises ModelError."""
        from cloud_gateway.models.text import Text

        self.starting("loading the tokenizer and grammars")
        path = plan.path
        settings = self.settings
        config = json_object(path / "config.json")
        tokenizer = load_tokenizer(path)
        digest = hf_vocabulary(path).digest
        text_config = config.get("text_config")
        vocab_size = int((text_config if isinstance(text_config, dict) else config)["vocab_size"])
        self._eos = ends(path, config)
        self._tokenizer = tokenizer
        made_by = fingerprint(
            folder_digest(path), digest.hex(), settings.target.engine, dtype_of(settings), *choices(settings)
        )
        served = ServedModel(path.name, int(path.stat().st_mtime), settings.target.context, vocab_size, made_by)
        own = make_grammars(settings, tokenizer, vocab_size, self._eos)
        grammars = None if own is None else SentGrammars(own)
        offer = offer_of(settings.parts, path)
        refuses: Mapping[str, str] = {}
        if self.drafts:
            refuses = REFUSES
        return LoadedModels(cast(Any, None), Text(tokenizer), None, digest, served, grammars, offer, refuses=refuses)

    async def make_engine(self, models: LoadedModels, links: Links, closing: AsyncExitStack) -> Engine:
        """Starts vLLM and the board. Raises ModelError."""
        folder = folders.socket_file("gateway", self.settings.daemon.state_dir).parent
        server = self._server(folder)
        books = [book for running in self.running if (book := running.book()) is not None]
        engine = RemoteEngine(
            server, models.served, self._eos, slots=self.settings.target.slots, queue_limit=QUEUE_LIMIT,
            drafts=self.drafts, books=books,
        )  # fmt: skip
        streams = links.inbox = Streams(links, asyncio.get_running_loop().time, engine)
        board = BoardServer(folder / BOARD_FILE, streams, models.served.vocab_size)
        engine.use(streams, hooked=lambda: server.is_child or board.engines > 0)
        await board.start()
        closing.push_async_callback(board.close)
        self.starting("starting vLLM")
        closing.push_async_callback(server.close)
        await self.starting.done(asyncio.ensure_future(server.start()), self._stop)
        engine.name = name_of(await server.get("/v1/models"), models.served.context)
        if not server.is_child:
            await check_same(server, engine.name, self._tokenizer, models.served.vocab_size)
        closing.push_async_callback(engine.stop)
        return cast(Engine, engine)

    def _server(self, folder: Path) -> Server:
        how = self.settings.target.engine.removeprefix("vllm")
        if how.startswith("+"):
            return Server(url=how[1:])

        command = shutil.which(how[1:] or "vllm")
        if command is None:
            raise ModelError(f"There is no command {how[1:] or 'vllm'}: name vLLM's as `target.engine`.")

        socket = folder / "vllm.sock"
        return Server(
            command=arguments(self.settings, command, socket, drafts=self.drafts), socket=socket,
            **{BOARD: str(folder / BOARD_FILE)},
        )  # fmt: skip


def arguments(settings: GatewaySettings, command: str, socket: Path, *, drafts: bool) -> list[str]:
    """The child's command line; a script of the operator's that calls vLLM may add to it."""
    target = settings.target
    path = str(resolve_model(settings.target.model))
    found = [
        command, "serve", path, "--uds", str(socket), "--max-model-len", str(target.context),
        "--max-num-seqs", str(target.slots), "--dtype", dtype_of(settings), "--disable-uvicorn-access-log",
        "--structured-outputs-config", json.dumps({"backend": "guidance"}),
    ]  # fmt: skip
    if not settings.api.prefix_cache:
        found.append("--no-enable-prefix-caching")
    if drafts:
        count = min(settings.policy.verify_nodes, MAX_DRAFTS)
        how = {"method": "custom_class", "model": "edgespec_vllm.Null", "num_speculative_tokens": count}
        found += ["--scheduler-cls", "edgespec_vllm.Scheduler", "--speculative-config", json.dumps(how)]
    return found


def dtype_of(settings: GatewaySettings) -> str:
    """`target.dtype`, which the gateway's part for torch declares: vLLM's own choice if the part is not there."""
    dtype: str = getattr(settings.target, "dtype", "auto")
    return dtype


def ends(path: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Every token that ends a completion, from the model's configuration and its generation defaults."""
    defaults = path / "generation_config.json"
    found = [config.get("eos_token_id"), json_object(defaults).get("eos_token_id") if defaults.exists() else None]
    return frozenset(i for one in found if one is not None for i in (one if isinstance(one, list) else [one]))


def name_of(listed: Any, context: int) -> str:
    """The model's name at vLLM. Raises ModelError if its context is too short."""
    try:
        first = listed["data"][0]
        name = str(first["id"])
        longest = int(first["max_model_len"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise ModelError("vLLM names no model.") from None
    if longest < context:
        raise ModelError(f"vLLM's context is {longest} tokens: set `target.context` to no more.")

    return name
