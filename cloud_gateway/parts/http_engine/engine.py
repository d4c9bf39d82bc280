"""The engine `http`: its settings, the tokenizer that the server must have, and how it is reached."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.part import Place
from cloud_gateway.process.config import TargetSection
from edgespec.core.errors import ConfigError, ModelError
from edgespec.shared.fields import Folder
from edgespec.shared.part import Settings
from edgespec.shared.settings import Section

if TYPE_CHECKING:
    from cloud_gateway.models.headers import Need
    from cloud_gateway.models.target_model.load import LoadedModel
    from edgespec.shared.vocabfiles import Vocabulary

log = logging.getLogger("cloud_gateway.process.loading")
NAME = "http"
METHOD = "draws"


class HttpSection(Section, frozen=True, kw_only=True):
    """[target]: the server that computes it."""

    url: Annotated[
        str, Meta(pattern=r"^(https?://[^\s]+)?\Z", extra={"allowed": '"" or a URL such as "http://127.0.0.1:8000"'})
    ] = ""
    key_file: Folder = ""


def http_conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """The server's draws are the only rows that this engine has, and no other engine has them."""
    is_http = settings.of(TargetSection).engine == NAME
    url = settings.of(HttpSection).url
    if is_http and not url:
        yield "target.url", f'the URL of a server if `target.engine` is "{NAME}"; `cloud-gateway attach URL` writes it'
    if url and not is_http:
        yield "target.engine", f'"{NAME}" if `target.url` is set'
    if is_http != (settings.of(PolicySettings).verification == METHOD):
        yield "policy.verification", f'"{METHOD}" if, and only if, `target.engine` is "{NAME}"'


class HttpEngine:
    """The `TargetEngine` of this part."""

    packages: Sequence[str] = ("transformers",)

    def suits(self, model: Path, settings: Settings) -> bool:
        """Never: a model file does not say that a server has it."""
        return False

    def check(self, model: Path, settings: Settings) -> None:
        self.vocabulary(model)
        key_of(settings)

    def vocabulary(self, model: Path) -> Vocabulary:
        from edgespec.shared.hf_vocabulary import vocabulary

        return vocabulary(model)

    def need(self, model: Path, settings: Settings) -> Need:
        from cloud_gateway.models.headers import Need

        return Need(0, 0)

    def place(self, settings: Settings) -> Place:
        return Place()

    def load(self, model: Path, settings: Settings, kv_tokens: int) -> LoadedModel:
        """Connects to the server, and compares its tokenizer with that of the file."""
        from cloud_gateway.models.target_model.load import LoadedModel
        from cloud_gateway.parts.http_engine.server import Server
        from cloud_gateway.parts.http_engine.target import REFUSES, HttpTarget, ServerLoop
        from cloud_gateway.parts.http_engine.tokens import check_same, tokens_of

        options = settings.of(TargetSection)
        vocabulary, tokens = tokens_of(model)
        server = Server(settings.of(HttpSection).url, key_of(settings))
        loop = ServerLoop()
        loop.run(server.open())
        loop.run(check_same(server, vocabulary.tokenizer, tokens.vocab_size))
        if 0 < server.context < options.context:
            raise ModelError(
                f"The server's requests have at most {server.context} tokens: set `target.context` to no more."
            )

        log.info("target %s computed at %s, a %s", server.model.id, server.url, server.dialect.name)
        target = HttpTarget(server, loop, tokens, slots=options.slots, context=options.context, kv_tokens=kv_tokens)
        return LoadedModel(target, vocabulary, f"http {server.dialect.name} {server.model.id}", REFUSES)


def key_of(settings: Settings) -> str:
    """The key in `target.key_file`; empty if none is set. Raises ConfigError."""
    name = settings.of(HttpSection).key_file
    if not name:
        return ""

    path = Path(name).expanduser()
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The key in `target.key_file`, {path}, cannot be read ({type(error).__name__}).") from error
