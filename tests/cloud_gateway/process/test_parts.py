"""The gateway starts each part of its list, and gives the engine what they bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloud_gateway.api.schema import ChatBody, decode
from cloud_gateway.core.policies.alone import Plain
from cloud_gateway.core.policies.registry import PolicyMaker
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.core.sources.interface import ROOT, DraftSource, SourceMakers, SourceStart, Suggestion
from cloud_gateway.engine.loop import Engine
from cloud_gateway.part import Foundation, GatewayPart, Running, Serving, choices_of
from cloud_gateway.process.config import DaemonSection, GatewaySettings, schema
from cloud_gateway.process.loading import engine_settings
from cloud_gateway.process.serve import Gateway
from edgespec.core.errors import ClientError, ConfigError
from edgespec.shared.settings import parse
from edgespec.shared.starting import Starting
from tests.support.echo import MODEL, ByteText
from tests.support.engines import complete
from tools.doubles.engines import TableTarget


class Listening(Running):
    """A part that listens to requests with itself."""

    def __init__(self, foundation: Foundation) -> None:
        self.foundation = foundation
        self.serving: list[Serving] = []

    def recording(self, serving: Serving) -> Any:
        self.serving.append(serving)
        return self


async def test_each_part_is_started_and_asked_for_a_listener(tmp_path: Path) -> None:
    settings = GatewaySettings(daemon=DaemonSection(state_dir=str(tmp_path)))
    parts = [GatewayPart("listening", start=Listening), GatewayPart("idle")]
    gateway = Gateway(settings, Starting("test"), parts=parts)
    models = cast(Any, SimpleNamespace(served=MODEL, text=ByteText()))

    recordings = gateway._recordings(Serving(models.served, models.text, gateway.commands.worker_rows))

    (listening,) = recordings
    assert isinstance(listening, Listening)
    assert listening.foundation.settings is settings
    assert listening.foundation.keys is gateway.keys
    assert [serving.model for serving in listening.serving] == [MODEL]


class Repeating(DraftSource):
    """Suggests the completion of the request of this scope before."""

    name = "repeating"
    why = None

    def __init__(self, start: SourceStart, kept: dict[bytes, list[int]]) -> None:
        self.learnt = list(start.learnt)
        self._expected = list(kept.get(start.scope, ()))
        self._unread = len(start.prompt)
        self._tokens = kept.setdefault(start.scope, [])
        self._tokens.clear()

    def committed(self, tokens: Sequence[int]) -> None:
        completion = tokens[self._unread :]
        self._unread = max(0, self._unread - len(tokens))
        self._tokens += completion
        self._expected = self._expected[len(completion) :]

    def propose(self, room: int) -> Sequence[Suggestion]:
        chain = enumerate(self._expected[:room])
        return [Suggestion(ROOT if number == 0 else number - 1, token, 0.9) for number, token in chain]

    def state(self) -> list[float]:
        return [1.0, *self.learnt]


class Kept(Running):
    """A part whose sources share what it keeps for the whole process."""

    def __init__(self, foundation: Foundation) -> None:
        self.kept: dict[bytes, list[int]] = {}
        self.made: list[Repeating] = []

    def sources(self, serving: Serving) -> SourceMakers:
        return {"repeating": self.make}

    def default_sources(self) -> Sequence[str]:
        return ("repeating",)

    def make(self, start: SourceStart) -> DraftSource:
        source = Repeating(start, self.kept)
        self.made.append(source)
        return source


def load_counting() -> PolicyMaker:
    return Plain


POLICIES: Mapping[str, Any] = {"counting": load_counting}
PART = GatewayPart("bringing", start=Kept, policies=POLICIES, sources=("repeating",))


async def test_a_part_brings_sources_that_learn_over_completions_of_a_scope(tmp_path: Path) -> None:
    settings = GatewaySettings(daemon=DaemonSection(state_dir=str(tmp_path)))
    gateway = Gateway(settings, Starting("test"), parts=[PART])
    makers = gateway._makers(Serving(MODEL, cast(Any, ByteText()), list), {})
    assert list(makers) == [*MAKERS, "repeating"]

    chosen = engine_settings(settings, gateway.choices, makers, gateway._default_sources())
    assert chosen.policy.sources == ("lookup", "repeating")
    engine = Engine(TableTarget(), None, chosen)
    engine.start()
    try:
        request = GenerationRequest([1, 2, 3], 12, cache_scope=b"alice", ignore_eos=True)
        first, _ = await complete(engine, request)
        other, alone = await complete(engine, GenerationRequest([1, 2, 3], 12, cache_scope=b"bob", ignore_eos=True))
        again, done = await complete(engine, request)
    finally:
        engine.stop()

    assert first == again == other
    assert done.usage.sources["repeating"]["accepted"] > 5
    assert alone.usage.sources["repeating"]["proposed"] == 0
    kept = cast(Kept, gateway.running[0])
    assert [source.learnt for source in kept.made] == [[], [1.0], [1.0, 1.0]]


async def test_a_part_brings_a_policy(tmp_path: Path) -> None:
    settings = GatewaySettings()
    engine = Engine(TableTarget(), None, engine_settings(settings, choices_of([PART])))
    engine.start()
    try:
        speculation = Speculation(policy="counting")
        _, done = await complete(engine, GenerationRequest([1, 2, 3], 4, speculation=speculation, ignore_eos=True))
    finally:
        engine.stop()

    assert done.usage.rounds == 4


def test_configuration_and_requests_take_the_names_of_parts() -> None:
    text = '[policy]\nname = "counting"\nsources = ["lookup", "repeating"]'
    assert parse(text, schema([PART]), "x.toml").policy.sources == ("lookup", "repeating")
    with pytest.raises(ConfigError, match='`policy.name` is "counting", but must be "plain" or '):
        parse(text, schema([]), "x.toml")
    with pytest.raises(ConfigError, match='but must be a list, each item "lookup" or "repeating"'):
        parse('[policy]\nsources = ["magic"]', schema([PART]), "x.toml")

    chat = b'{"model": "m", "messages": [{"role": "user"}], "edgespec": %s}'
    body = chat % b'{"policy": "counting", "sources": ["repeating"]}'
    received, _ = decode(body, ChatBody, {}, choices_of([PART]))
    assert received.edgespec is not None and received.edgespec.policy == "counting"
    with pytest.raises(ClientError, match="expected a list of lookup, repeating"):
        decode(body.replace(b'"repeating"', b"5"), ChatBody, {}, choices_of([PART]))
    with pytest.raises(ClientError, match="expected one of plain, "):
        decode(body, ChatBody, {}, choices_of([]))
