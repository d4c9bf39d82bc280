"""`cloud-gateway attach URL`: what a server that runs already can do for workers' drafts, and what a call costs there.

It asks for tokens by id, for lists of prompts, and times tokens of a stream and calls over one, two, ... prompts with a
common beginning. With `--model FOLDER` it writes the configuration of a gateway before that server. The key of its API
is `$VLLM_API_KEY`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from cloud_gateway.part import GatewayPart
from edgespec.core.errors import ConfigError, ModelError
from edgespec_vllm.gateway import rows
from edgespec_vllm.gateway.bodies import decode
from edgespec_vllm.gateway.server import KEY

TIMEOUT_S = 120.0
"""For one response: a server on a CPU may compile something first."""
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
FIRST_TOKEN = 100
"""The least of the token ids that are sent: those below it are often control tokens."""
SPREAD = 97
"""Ids from there on that are sent."""
BLOCK = re.compile(r'vllm:cache_config_info\{[^}]*block_size="(\d+)"')


UNUSABLE = "Drafts cannot be verified there: it answers with text alone, or takes no lists of prompts."


class Listed(Struct):
    """A model of `/v1/models`."""

    id: str
    max_model_len: int | None = None


class Models(Struct):
    """The body of `/v1/models`."""

    data: list[Listed]


@dataclass
class Found:
    """The server's answers. Times are in milliseconds."""

    model: str
    context: int
    """Tokens; 0 if it does not say."""
    tokens_by_id: bool = False
    """Completions come back as token ids."""
    lists: bool = False
    """A list of prompts gets one token each, in any order of their indices."""
    cached: bool = False
    """A beginning that was sent before is not computed again."""
    block: int | None = None
    """Tokens of a block of its cache; None if it does not say."""
    token_ms: float = 0.0
    """The time between two tokens of a stream."""
    call_ms: dict[int, float] = field(default_factory=dict)
    """The time of a call, by its number of prompts."""

    @property
    def usable(self) -> bool:
        """Whether drafts can be verified there."""
        return self.tokens_by_id and self.lists

    def needed(self, prompts: int) -> float:
        """Candidates of a call that have to be right on average for it to be as fast as the stream."""
        return max(self.call_ms[prompts] / (rows.MARGIN * self.token_ms) - 1, 0.0)

    def lines(self) -> list[str]:
        """The table, and what follows from it."""
        said = {True: "yes", False: "no"}
        table = [
            f"model            {self.model}",
            f"context          {self.context or 'not said'}",
            f"tokens by id     {said[self.tokens_by_id]}",
            f"lists of prompts {said[self.lists]}",
        ]
        if not self.usable:
            return [
                *table,
                UNUSABLE,
            ]

        table += [
            f"cached prefixes  {said[self.cached]}",
            f"block of them    {self.block or 'not said'}",
            f"token of stream  {self.token_ms:.1f} ms",
            "",
            "prompts of a call    ms   each drafted token has to be right",
        ]
        for prompts, ms in self.call_ms.items():
            right = self.least_right(prompts)
            table.append(f"{prompts:17} {ms:6.1f}   {'never enough' if right is None else f'{right:.0%}'}")
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
        if not self.cached:
            return "It caches no prefixes, so each call computes the whole prompt: start it with prefix caching."
        paying = {prompts: right for prompts in self.call_ms if (right := self.least_right(prompts)) is not None}
        if not paying:
            return "A call takes as long as the tokens that it could bring: drafts do not pay there."
        best = min(paying, key=lambda prompts: paying[prompts])
        return f"Drafts pay there if a drafted token is right at least {paying[best]:.0%} of the time."


class Verb:
    """`cloud-gateway attach`."""

    def add(self, verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Adds its parser."""
        text = "try a server that runs already, and say what drafts of workers cost there"
        parser = verbs.add_parser("attach", help=text, description=__doc__)
        parser.set_defaults(run=run_command)
        parser.add_argument("url", metavar="URL", help="http://HOST:PORT of an OpenAI-compatible server")
        parser.add_argument("--model", type=Path, metavar="FOLDER", help="the model that it serves, for its tokenizer")
        parser.add_argument("--output", type=Path, default=Path("gateway.toml"), metavar="FILE", help="what to write")
        parser.add_argument("--json", action="store_true", help="print JSON")


PART = GatewayPart("vllm_attach", verbs=(Verb(),))


def run_command(options: argparse.Namespace) -> int:
    """Prints the table. Raises ModelError if the server does not answer, ConfigError if nothing can be written."""
    url = str(options.url).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is no URL: write it as http://HOST:PORT.")
    if options.model is not None and options.output.exists():
        raise ConfigError(f"{options.output} is there already: name another file by `--output`.")

    found = asyncio.run(tried(url))
    if options.json:
        least = {prompts: found.least_right(prompts) for prompts in found.call_ms}
        print(json.dumps(asdict(found) | {"usable": found.usable, "least_right": least}, indent=1))
    else:
        print("\n".join(found.lines()))
    if options.model is not None and found.usable:
        options.output.write_text(configuration(url, options.model.resolve(), found))
        print(f"written: {options.output}; start the gateway with `cloud-gateway serve --config {options.output}`")
    if found.usable:
        return 0

    return 69


def configuration(url: str, model: Path, found: Found) -> str:
    """The file of a gateway before this server."""
    lines = ["[target]", f"model = {json.dumps(str(model))}", f'engine = "vllm+{url}"']
    if found.context:
        lines.append(f"context = {found.context}")
    return "\n".join(lines) + "\n"


async def tried(url: str) -> Found:
    """Asks the server for everything. Raises ModelError."""
    key = os.environ.get(KEY, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        trial = Trial(session, url)
        try:
            return await trial.run()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            what = str(error) or type(error).__name__
            raise ModelError(f"{url} does not answer as an OpenAI-compatible server: {what[:200]}.") from error


class Trial:
    """The questions to one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._model = ""
        self._salt = secrets.token_hex(16)

    async def run(self) -> Found:
        """All of them, in their order. Raises ValueError, aiohttp.ClientError."""
        first = await self._listed()
        self._model = first.id
        found = Found(first.id, first.max_model_len or 0)

        prefix = self._prefix(min(PREFIX, found.context // 2 or PREFIX))
        began = time.monotonic()
        status, answer = await self._call([prefix])
        fresh_s = time.monotonic() - began
        if status != 200:
            return found

        found.tokens_by_id = _drawn(answer, 1)
        if not found.tokens_by_id:
            return found

        status, answer = await self._call([prefix, [*prefix, FIRST_TOKEN]])
        found.lists = status == 200 and _drawn(answer, 2)
        if not found.lists:
            return found

        found.block = await self._block()
        found.token_ms = 1000 * await self._token_s(prefix)
        for size in SIZES:
            found.call_ms[size] = 1000 * await self._call_s(prefix, size)
        found.cached = found.call_ms[1] < 1000 * CACHED * fresh_s
        return found

    def _prefix(self, length: int) -> list[int]:
        """Token ids of no meaning, others at each trial."""
        return [FIRST_TOKEN + secrets.randbelow(SPREAD) for _ in range(length)]

    async def _listed(self) -> Listed:
        """The first model that it serves."""
        async with self._session.get(self._url + "/v1/models") as response:
            response.raise_for_status()
            body = await response.read()
        try:
            models = msgspec.json.decode(body, type=Models).data
        except msgspec.MsgspecError:
            models = []
        if not models:
            raise ValueError("it lists no model")

        return models[0]

    def _body(self, **more: Any) -> Mapping[str, Any]:
        usual = {"model": self._model, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        return {**usual, "add_special_tokens": False, "cache_salt": self._salt, "ignore_eos": True, **more}

    async def _call(self, prompts: list[list[int]]) -> tuple[int, bytes]:
        async with self._session.post(self._url + "/v1/completions", json=self._body(prompt=prompts)) as response:
            return response.status, await response.read()

    async def _call_s(self, prefix: list[int], size: int) -> float:
        """Seconds of a call over so many prompts whose common beginning the server knows."""
        times: list[float] = []
        for _ in range(REPEATS):
            path = self._prefix(size - 1)
            began = time.monotonic()
            status, _ = await self._call([[*prefix, *path[:depth]] for depth in range(size)])
            times.append(time.monotonic() - began)
            if status != 200:
                raise ValueError(f"status {status} for {size} prompts")

        return min(times)

    async def _token_s(self, prefix: list[int]) -> float:
        """Seconds between two tokens of a stream, in the mean."""
        moments: list[float] = []
        body = self._body(prompt=prefix, max_tokens=STREAMED, stream=True)
        async with self._session.post(self._url + "/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data:") and b"token_ids" in line:
                    moments.append(time.monotonic())
        if len(moments) < STREAMED // 2:
            raise ValueError(f"a stream of {len(moments)} tokens")

        return (moments[-1] - moments[0]) / (len(moments) - 1)

    async def _block(self) -> int | None:
        """The block size in vLLM's metrics."""
        async with self._session.get(self._url + "/metrics") as response:
            shown = BLOCK.search(await response.text()) if response.status == 200 else None
        if shown is not None:
            return int(shown[1])
        return None


def _drawn(answer: bytes, prompts: int) -> bool:
    """Whether an answer has one token id after each prompt."""
    try:
        choices = decode(answer).choices
    except msgspec.MsgspecError:
        return False
    return len(choices) == prompts and all(len(choice.token_ids or ()) == 1 for choice in choices)
