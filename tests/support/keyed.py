"""A whole gateway in this process, real models and real sockets, with two API keys and counts of what is evaluated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace

from cloud_gateway.api import Api, Backend, make_app
from cloud_gateway.api.listener import listen
from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.choices import Choices
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.drafts.gguf import LocalDraft
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import LoadedModels, engine_settings, load_models
from edgespec.shared.settings import overridden
from tests.support.local_policies import WITH_LOCAL
from tests.support.tiny_gguf import make_tiny_gguf
from tools.doubles.limits import TIMES, api_bounds, request_limits


@dataclass
class Keyed:
    """The running gateway. `evaluated` counts tokens: of prompts at the target, of anything at the local draft."""

    url: str
    keys: KeyRing
    models: LoadedModels
    prefilled: int = 0

    @property
    def drafted(self) -> int:
        assert isinstance(self.models.local, LocalDraft)
        return self.models.local.rows

    async def ask(self, key: str, prompt: list[int] | str, **more: Any) -> dict[str, Any]:
        """A text completion with `usage.edgespec`; one token, drafted here, unless `more` says otherwise."""
        body = {"model": self.models.served.id, "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
        body["edgespec"] = {"usage": True, **more.get("edgespec", {})}
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.post(f"{self.url}/v1/completions", json=body) as response:
                found: dict[str, Any] = await response.json()
                assert response.status == 200, json.dumps(found)
                return found

    async def cost(self, key: str, prompt: list[int], **more: Any) -> tuple[int, int]:
        """Prompt tokens that the target evaluated for this request, and tokens that the local draft did."""
        before = self.prefilled, self.drafted
        await self.ask(key, prompt, **more)
        return self.prefilled - before[0], self.drafted - before[1]


def tiny_settings(folder: Path) -> GatewaySettings:
    """Random models of some tens of kilobytes; the policy drafts at the gateway."""
    target = make_tiny_gguf(folder / "target.gguf", seed=1)
    draft = make_tiny_gguf(folder / "draft.gguf")
    return chosen(target=target, draft=draft, context=512, policy="local-chain")


def chosen(target: Path, draft: Path, context: int, policy: str) -> GatewaySettings:
    options = {
        "target.model": str(target),
        "target.context": context,
        "target.threads": 1,
        "local_draft.model": str(draft),
        "local_draft.threads": 1,
    }
    settings = overridden(GatewaySettings(), options)
    return replace(settings, policy=replace(settings.policy, name=policy))


@asynccontextmanager
async def keyed_gateway(state: Path, settings: GatewaySettings) -> AsyncIterator[Keyed]:
    """Serves on a free port of loopback."""
    models = load_models(settings)
    engine = Engine(models.target, models.local, engine_settings(settings, Choices(WITH_LOCAL)))
    keys = KeyRing(state / "keys")
    api = Api(request_limits())
    listener = await listen(make_app(api, keys), "127.0.0.1", 0, "api", api_bounds(), TIMES)
    keyed = Keyed(listener.url, keys, models)
    prefill = models.target.prefill

    def counted(slot: int, tokens: Any) -> None:
        keyed.prefilled += len(tokens)
        prefill(slot, tokens)

    models.target.prefill = counted  # type: ignore[method-assign]
    engine.start()
    api.serve(Backend(engine, models.text, models.served, models.grammars))
    try:
        yield keyed
    finally:
        await api.drain(0)
        await listener.close()
        engine.stop()
        assert isinstance(models.local, LocalDraft)
        models.local.shutdown()
