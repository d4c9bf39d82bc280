"""What `edgespec tune` and `python -m tools.bench sources` compare: each source of drafts alone, and merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from cloud_gateway.core.policies.settings import SourceName
from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.drafts import DraftModel
from cloud_gateway.process.config import SELF, GatewaySettings
from cloud_gateway.process.loading import Models, engine_settings
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling

WARM = "Count to ten."
DRAFT = Speculation(policy="adaptive", prefer="latency", sources=())
HEADS: tuple[SourceName, ...] = ("medusa", "eagle")
"""Arms of heads beside the target, by the name of their source."""
Draft = Literal["none", "local", "self"]
Completed = tuple[list[int], Usage]


class Arm(NamedTuple):
    """What is asked for, and which draft model runs beside the target."""

    asks: Speculation
    draft: Draft = "none"


ARMS: Mapping[str, Arm] = {
    "plain": Arm(Speculation(policy="plain")),
    "lookup": Arm(Speculation(policy="adaptive", sources=("lookup",))),
    "medusa": Arm(Speculation(policy="adaptive", sources=("medusa",))),
    "eagle": Arm(Speculation(policy="adaptive", sources=("eagle",))),
    "colocated": Arm(Speculation(policy="colocated", k=2), "local"),
    "draft": Arm(DRAFT, "local"),
    "self": Arm(DRAFT, "self"),
    "merge": Arm(Speculation(policy="adaptive", prefer="latency", sources=("lookup", *HEADS)), "local"),
}


class Arms:
    """Engines over one target, one for each draft beside it, of which one at a time works. Used as a context."""

    def __init__(self, loaded: Models, settings: GatewaySettings, curve: Mapping[int, float] | None = None) -> None:
        """`curve`: as of `Engine`. Raises ModelError where the target has not the layers of `local_draft.layers`."""
        drafts: dict[Draft, DraftModel | None] = {"none": None}
        if loaded.local is not None:
            drafts["local"] = loaded.local
        layers, draft = settings.local_draft.layers, settings.local_draft.model
        if layers and draft != SELF:
            from cloud_gateway.models.drafts.self_draft import SelfDraft
            from cloud_gateway.models.target_model.torch import TorchTarget

            if isinstance(loaded.target, TorchTarget):
                drafts["self"] = SelfDraft(loaded.target, layers, requests=1)
        self._render, self._engines = loaded.text.render_chat, dict[Draft, Engine]()
        for name, model in drafts.items():
            self._engines[name] = Engine(loaded.target, model, engine_settings(settings), curve=curve)
            self._engines[name].local.heads = loaded.heads
        self.names = [
            name for name, arm in ARMS.items() if arm.draft in drafts and (name not in HEADS or name in loaded.heads)
        ]

    async def __aenter__(self) -> Arms:
        for engine in self._engines.values():
            engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for engine in self._engines.values():
            engine.stop()

    async def compare(
        self, names: Sequence[str], prompts: Sequence[str], count: int, done: Callable[[], object] = lambda: None
    ) -> list[dict[str, Completed]]:
        """Of each prompt every arm's completion, in turns, each prompt beginning with another arm.

        All answer WARM before, which is not returned. `done` is called after each completion. Raises ModelError.
        """
        found: list[dict[str, Completed]] = []
        for number, prompt in enumerate([WARM, *prompts]):
            tokens, shift = self._render([{"role": "user", "content": prompt}]), number % len(names)
            found.append({})
            for name in [*names[shift:], *names[:shift]]:
                found[-1][name] = await self._completion(ARMS[name], tokens, count)
                done()
        return found[1:]

    async def _completion(self, arm: Arm, prompt: Sequence[int], count: int) -> Completed:
        """A greedy one."""
        wanted = GenerationRequest(prompt, count, Sampling(temperature=0), speculation=arm.asks)
        tokens, end = await self._engines[arm.draft].submit(wanted).whole()
        if end.error is not None:
            raise ModelError(end.error)
        return tokens, end.usage
