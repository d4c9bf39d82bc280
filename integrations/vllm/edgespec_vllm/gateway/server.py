"""The vLLM behind the gateway: a child that is started again if it ends, or one that runs elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import secrets
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from edgespec.core.errors import ModelError

log = logging.getLogger("edgespec_vllm.gateway.server")
KEY = "VLLM_API_KEY"
"""The environment variable with vLLM's API key: a random one for a child, the operator's for one elsewhere."""
RETRY_S = (1.0, 60.0)
"""Shortest and longest wait before a child is started again; one that has served for longer starts over."""
POLL_S = 1.0
HEALTH_S = 10.0
END_S = 20.0
"""Between two looks at `/health`; for its answer; for a child to end by itself."""
TAIL = 4
"""Last lines of a child's output in the error about its end."""
MAX_LINE_BYTES = 1 << 22
_NOT_ITS_OWN = ("CREDENTIALS_DIRECTORY", "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC")
"""Variables that systemd gave to the gateway's process."""


class Server:
    """Lives on the event loop. `up` while it takes requests."""

    def __init__(self, url: str = "", command: Sequence[str] = (), socket: Path | None = None, **env: str) -> None:
        """Either `url`, or `command` of a child that listens on `socket`, with further variables `env`."""
        self._command = list(command)
        self._socket = socket
        self._env = env
        self._key = os.environ.get(KEY, "") if url else secrets.token_urlsafe(32)
        self._base = url.rstrip("/") or "http://vllm"
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._ended = "no answer"
        self.up = False
        self.starts = 0

    async def start(self) -> None:
        """Returns once it is healthy. Raises ModelError if a child ends before, or nothing answers at the URL."""
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(str(self._socket), limit=0) if self._socket else aiohttp.TCPConnector(limit=0)
        )
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=HEALTH_S)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout, read_bufsize=MAX_LINE_BYTES, trust_env=False
        )
        self._task = asyncio.ensure_future(self._keep_running())
        await self._changed.wait()
        if not self.up:
            if not self._command:
                raise ModelError(f"vLLM does not answer at {self._base}.")
            raise ModelError(f"vLLM ({self._command[0]}) ended before it served: {' '.join(self._tail)[-600:]}")

    async def close(self) -> None:
        """Ends a child, and all requests."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._session is not None:
            await self._session.close()

    @property
    def is_child(self) -> bool:
        """Whether the gateway starts it, with `target.model`."""
        return bool(self._command)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The response, as a context manager of aiohttp."""
        assert self._session is not None
        return self._session.post(self._base + path, json=body)

    async def get(self, path: str) -> Any:
        """A JSON object. Raises ModelError."""
        assert self._session is not None
        try:
            async with self._session.get(self._base + path) as response:
                response.raise_for_status()
                return await response.json()
        except (aiohttp.ClientError, ValueError) as error:
            raise ModelError(f"vLLM does not answer {path} as expected ({type(error).__name__}).") from error

    async def ask(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status and JSON of a short response; None for what is no JSON. Raises ModelError."""
        try:
            async with self.post(path, body) as response:
                with contextlib.suppress(ValueError, aiohttp.ContentTypeError):
                    return response.status, await response.json()
                return response.status, None
        except (aiohttp.ClientError, OSError) as error:
            raise ModelError(f"vLLM does not answer {path} as expected ({type(error).__name__}).") from error

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = RETRY_S[0]
        while True:
            began = loop.time()
            try:
                await self._run()
            except OSError as error:
                self._ended = f"it cannot be started, {error.strerror or error}"
                self._tail.append(self._ended)
            self._changed.set()
            wait_s = RETRY_S[0] if loop.time() - began > RETRY_S[1] or not self._command else wait_s
            log.warning("vLLM is away (%s), and is tried again in %.0f s", self._ended, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S[1])

    async def _run(self) -> None:
        """Until it is gone. Raises OSError."""
        process = await self._spawn() if self._command else None
        reader = asyncio.ensure_future(self._read(process)) if process is not None else None
        try:
            await self._watch(process)
        finally:
            self.up = False
            if process is not None and reader is not None:
                await _end(process)
                self._ended = f"exit status {process.returncode}"
                await asyncio.wait([reader], timeout=POLL_S)
                reader.cancel()

    async def _watch(self, process: Process | None) -> None:
        """Until it is gone; a child that does not answer yet has not gone."""
        ended = asyncio.ensure_future(process.wait()) if process is not None else None
        try:
            while ended is None or not ended.done():
                healthy = await self._healthy()
                if healthy and not self.up:
                    log.info("vLLM is ready")
                    self.up = True
                    self._changed.set()
                elif healthy is False and (self.up or process is None):
                    return
                if ended is not None:
                    await asyncio.wait([ended], timeout=POLL_S)
                else:
                    await asyncio.sleep(POLL_S)
        finally:
            if ended is not None:
                ended.cancel()

    async def _healthy(self) -> bool | None:
        """None if it is too busy to say."""
        assert self._session is not None
        try:
            timeout = aiohttp.ClientTimeout(total=HEALTH_S)
            async with self._session.get(f"{self._base}/health", timeout=timeout) as response:
                return response.status == 200
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError):
            return False

    async def _spawn(self) -> Process:
        """It ends with the gateway, however that ends. Raises OSError."""
        self.starts += 1
        self._tail.clear()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_ITS_OWN}
        process = await asyncio.create_subprocess_exec(
            *self._command, stdout=PIPE, stderr=STDOUT, env=environment | self._env | {KEY: self._key},
            start_new_session=True, preexec_fn=_end_with_parent, limit=MAX_LINE_BYTES,
        )  # fmt: skip
        log.info("vLLM runs as process %d", process.pid)
        return process

    async def _read(self, process: Process) -> None:
        """Its output, of which nothing is logged once it serves: it could show prompts."""
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # a line without end
            async for line in process.stdout:
                self._tail.append(line.decode(errors="replace").rstrip())


def _end_with_parent() -> None:
    """In the child, before it runs: SIGTERM when the gateway's thread is gone."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


async def _end(process: Process) -> None:
    """Ends it with its own children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
