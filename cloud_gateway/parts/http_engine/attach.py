"""`cloud-gateway attach URL`: what a server that runs already can do for drafts, and what a call costs there.

It asks for tokens by id, for lists of prompts and for scores, and times tokens of a stream and calls over one, two, ...
prompts with a common beginning. With `--model` it writes the configuration of a gateway before that server.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cloud_gateway.parts.http_engine.dialects import GarbledError, Question
from cloud_gateway.parts.http_engine.server import PARTIAL, RefusedError, Server
from edgespec.core.errors import ModelError

PREFIX = 512
"""Tokens of the common beginning, if the server's context is long enough."""
STREAMED = 24
"""Tokens that are timed in a stream."""
SIZES = (1, 2, 3, 5, 9, 17)
"""Prompts of the calls that are timed."""
REPEATS = 3
"""Calls of each size, of which the fastest counts."""
CACHED = 0.7
"""Time of a call whose beginning was sent before, in that of its first, below which it came from a cache."""
MARGIN = 0.95
"""A call pays if it takes less than this share of the time of the tokens that it brings."""
FIRST_TOKEN = 100
"""The least of the token ids that are sent: those below it are often control tokens."""
SPREAD = 97
"""Ids from there on that are sent."""
BLOCK = re.compile(r'vllm:cache_config_info\{[^}]*block_size="(\d+)"')
UNUSABLE = "It cannot compute a target here: it answers with text alone, and a text is not its tokens."


@dataclass
class ServerReport:
    """The server's answers. Times are in milliseconds."""

    model: str
    dialect: str
    context: int
    """Tokens; 0 if it does not say."""
    slots: int = 0
    """Requests that it computes at once; 0 if it does not say."""
    tokens_by_id: bool = False
    """Completions come back as token ids."""
    lists: bool = False
    """A list of prompts gets one token each, in any order of their indices."""
    scores: bool = False
    """A prompt gets its tokens' log-probabilities."""
    cached: bool = False
    """A beginning that was sent before is not computed again."""
    block: int | None = None
    """Tokens of a block of its cache; None if it does not say."""
    token_ms: float = 0.0
    """The time between two tokens of a stream."""
    call_ms: dict[int, float] = field(default_factory=dict)
    """The time of a call, by its number of prompts."""

    def needed(self, prompts: int) -> float:
        """Candidates of a call that have to be right on average for it to be as fast as the stream."""
        return max(self.call_ms[prompts] / (MARGIN * self.token_ms) - 1, 0.0)

    def lines(self) -> list[str]:
        """The table, and what follows from it."""
        said = {True: "yes", False: "no"}
        table = [
            f"model            {self.model}",
            f"kind of server   {self.dialect}",
            f"context          {self.context or 'not said'}",
            f"requests at once {self.slots or 'not said'}",
            f"tokens by id     {said[self.tokens_by_id]}",
        ]
        if not self.tokens_by_id:
            return [*table, UNUSABLE]

        table += [
            f"lists of prompts {said[self.lists]}",
            f"scores of chains {said[self.scores]} (not used)",
            f"cached prefixes  {said[self.cached]}",
            f"block of them    {self.block or 'not said'}",
            f"token of stream  {self.token_ms:.1f} ms",
        ]
        if self.call_ms:
            table += ["", "prompts of a call    ms   each drafted token has to be right"]
        for prompts, ms in self.call_ms.items():
            right = self.least_right(prompts)
            shown = "never enough"
            if right is not None:
                shown = f"{right:.0%}"
            table.append(f"{prompts:17} {ms:6.1f}   {shown}")
        return [*table, "", self.verdict()]

    def least_right(self, prompts: int) -> float | None:
        """How often each token of a chain has to be right for its call to be as fast as the stream; None: always is not
        enough. The chain's tokens are taken to be right independently of each other.
        """
        depth = prompts - 1
        needed = self.needed(prompts)
        if needed >= depth:
            return None

        low = 0.0
        high = 1.0
        for _ in range(20):
            right = (low + high) / 2
            if sum(right**level for level in range(1, depth + 1)) < needed:
                low = right
            else:
                high = right
        return high

    def verdict(self) -> str:
        """One sentence."""
        if not self.lists:
            return "It takes no lists of prompts: the gateway decodes by its stream, and drafts are of no use there."
        if not self.cached:
            return "It caches no prefixes, so each call computes the whole prompt: start it with prefix caching."

        paying = {prompts: right for prompts in self.call_ms if (right := self.least_right(prompts)) is not None}
        if not paying:
            return "A call takes as long as the tokens that it could bring: drafts do not pay there."
        best = min(paying, key=lambda prompts: paying[prompts])
        return f"Drafts pay there if a drafted token is right at least {paying[best]:.0%} of the time."

    def figures(self) -> Mapping[str, object]:
        """All of it, for JSON."""
        least_right = {prompts: self.least_right(prompts) for prompts in self.call_ms}
        return {**vars(self), "least_right": least_right, "verdict": self.verdict()}


def attach(url: str, model: Path | None, key_file: Path | None, output: Path, *, as_json: bool) -> int:
    """Prints the table. Raises ModelError if the server does not answer."""
    key = ""
    if key_file is not None:
        key = key_file.read_text().strip()

    found = asyncio.run(tried(url, key))
    if as_json:
        print(json.dumps(found.figures(), indent=1))
    else:
        print("\n".join(found.lines()))
    if not found.tokens_by_id:
        return 69

    if model is not None:
        output.write_text(configuration(url, model.resolve(), key_file, found))
        print(f"written: {output}; start the gateway with `cloud-gateway serve --config {output}`")
    return 0


def configuration(url: str, model: Path, key_file: Path | None, found: ServerReport) -> str:
    """The file of a gateway before this server."""
    lines = ["[target]", 'engine = "http"', f"url = {json.dumps(url)}", f"model = {json.dumps(str(model))}"]
    if key_file is not None:
        lines.append(f"key_file = {json.dumps(str(key_file.resolve()))}")
    if found.context:
        lines.append(f"context = {found.context}")
    if found.slots:
        lines.append(f"slots = {found.slots}")
    lines += ["[policy]", 'verification = "draws"', "[local_draft]", 'model = ""']
    return "\n".join(lines) + "\n"


async def tried(url: str, key: str = "") -> ServerReport:
    """Asks the server for everything. Raises ModelError."""
    server = Server(url, key)
    try:
        await server.open()
        return await ServerTrial(server).run()
    except PARTIAL as error:
        raise ModelError(f"{url} does not answer ({type(error).__name__}).") from error
    except RefusedError as error:
        raise ModelError(f"{url} does not answer as expected ({error}).") from error
    finally:
        await server.close()


class ServerTrial:
    """The questions to one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._question = Question(server.model.id, ignore_eos=True)
        if server.dialect.scoped:
            self._question = Question(server.model.id, ignore_eos=True, salt=secrets.token_hex(16))

    async def run(self) -> ServerReport:
        """All of them, in their order. Raises RefusedError, and what a connection raises."""
        server = self._server
        found = ServerReport(server.model.id, server.dialect.name, server.context, server.slots)
        prefix = token_ids(min(PREFIX, found.context // 2 or PREFIX))
        found.tokens_by_id = await self._draws([prefix])
        if not found.tokens_by_id:
            return found

        found.scores = await server.scores(self._question, prefix[:16])
        found.block = await self._block()
        found.token_ms = 1000 * await self._token_s(prefix)
        found.lists = await self._draws([prefix, [*prefix, FIRST_TOKEN]])
        if not found.lists:
            return found

        fresh_s = await self._fresh_s(len(prefix))
        for size in SIZES:
            found.call_ms[size] = 1000 * await self._call_s(prefix, size)
        found.cached = found.call_ms[1] < 1000 * CACHED * fresh_s
        return found

    async def _draws(self, prompts: Sequence[Sequence[int]]) -> bool:
        """Whether each prompt gets a token."""
        try:
            await self._server.rows(self._question, prompts)
        except (RefusedError, GarbledError):
            return False
        return True

    async def _fresh_s(self, length: int) -> float:
        """Seconds of a call over one prompt whose beginning the server has not seen."""
        times: list[float] = []
        for _ in range(REPEATS):
            prompt = token_ids(length)
            began = time.monotonic()
            await self._server.rows(self._question, [prompt])
            times.append(time.monotonic() - began)
        return min(times)

    async def _call_s(self, prefix: Sequence[int], size: int) -> float:
        """Seconds of a call over so many prompts whose common beginning the server has seen."""
        times: list[float] = []
        for _ in range(REPEATS):
            path = token_ids(size - 1)
            began = time.monotonic()
            await self._server.rows(self._question, [[*prefix, *path[:depth]] for depth in range(size)])
            times.append(time.monotonic() - began)
        return min(times)

    async def _token_s(self, prefix: Sequence[int]) -> float:
        """Seconds between two tokens of a stream, in the mean."""
        moments: list[float] = []
        async for drawn in self._server.events(self._question, prefix, STREAMED):
            moments += [time.monotonic()] * len(drawn.tokens)
        if len(moments) < 2:
            return 0.0
        return (moments[-1] - moments[0]) / (len(moments) - 1)

    async def _block(self) -> int | None:
        """The block size in vLLM's metrics."""
        shown = BLOCK.search(await self._server.metrics())
        if shown is not None:
            return int(shown[1])
        return None


def token_ids(length: int) -> list[int]:
    """Token ids of no meaning, others at each call."""
    return [FIRST_TOKEN + secrets.randbelow(SPREAD) for _ in range(length)]
