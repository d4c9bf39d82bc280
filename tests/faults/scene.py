"""A gateway and two workers as processes, with a random model, behind an emulated link that faults can change."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgespec.core.errors import EdgespecError
from edgespec.shared.control_client import call
from edgespec_lab.link_model import LinkModel
from edgespec_lab.rig import Rig, RigError
from edgespec_lab.rig.chat import ChatClient, greedy
from edgespec_lab.wan import Proxy
from tests.support.tiny_gguf import make_tiny_gguf

WORKERS = ("worker", "second")
TOKENS = 160
PROMPTS = ("the cat sat", "a dog ran on")
USUAL = LinkModel(rtt_s=0.004)
TIGHT = {"target.kv_tokens": 1022, "target.exact": "yes"}
"""A cache that prefixes kept for later prompts fill, and whose cells are used once before all are moved together."""


class Scene:
    """The processes that faults are injected into."""

    def __init__(self, folder: Path, workers: Sequence[str] = WORKERS, *, tight: bool = False) -> None:
        """Makes two models that agree often: the target takes some milliseconds a pass, so that faults find it busy.

        `tight`: the target has a small KV cache (`TIGHT`).
        """
        self.workers = workers
        shape: dict[str, Any] = {"layers": 6, "hidden": 256}
        self.target = make_tiny_gguf(folder / "target.gguf", **shape)
        self.draft = make_tiny_gguf(folder / "draft.gguf", unlike=0.05, **shape)
        gateway: dict[str, Any] = {"target.threads": 1, "target.context": 512, "target.slots": 8}
        gateway["local_draft.model"] = ""
        gateway |= TIGHT if tight else {}
        self.rig = Rig(
            folder / "rig", str(self.target), str(self.draft), None, exact=True,
            gateway_options=gateway, worker_options={"draft.threads": 1, "draft.context": 1024},
        )  # fmt: skip
        self.proxy: Proxy

    def __enter__(self) -> Scene:
        with contextlib.ExitStack() as ends:  # what runs already is ended if the rest cannot be started
            rig = ends.enter_context(self.rig)
            rig.start_gateway()
            rig.create_key()
            self.proxy = Proxy(("127.0.0.1", rig.link_port), USUAL)
            ends.callback(self.proxy.close)
            threading.Thread(target=self.proxy.serve, daemon=True).start()
            rig._proxies["worker"] = self.proxy.port
            for name in self.workers:
                rig.pair(name)
                rig.start_worker(name)
            self.expected = {prompt: self.answer(prompt, policy="plain") for prompt in PROMPTS}
            assert len(set(self.expected.values())) == len(PROMPTS), "a mixed-up text would not be seen"
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def client(self) -> ChatClient:
        """A client of the chat API."""
        return ChatClient(self.rig.ready["api"]["port"], self.rig.ready["model"], self.rig.key)

    def body(self, prompt: str, **edgespec: Any) -> dict[str, Any]:
        """A greedy completion of `TOKENS` tokens."""
        return greedy(prompt, TOKENS, {"ignore_eos": True, **edgespec})

    def answer(self, prompt: str, **edgespec: Any) -> str:
        """The text of one whole completion. Raises RigError."""
        return str(self.client().complete(self.body(prompt, **edgespec))["choices"][0]["message"]["content"])

    def linked(self) -> int:
        """Workers that are linked and not paused; -1 if the gateway does not answer."""
        try:
            status = call(self.rig.folder / "gateway" / "gateway.sock", "status", timeout_s=5)
            return int(status["workers_linked"] - status["workers_paused"])
        except (EdgespecError, KeyError):
            return -1

    def healthy(self) -> bool:
        """Whether both workers are ready and a completion with their drafts equals the fault-free one."""
        if self.linked() != len(self.workers):
            return False
        with contextlib.suppress(RigError):
            return self.answer(PROMPTS[0], policy="wanspec") == self.expected[PROMPTS[0]]
        return False

    def restart(self, name: str) -> None:
        """Starts a worker again if it ended; does not wait until it is linked."""
        if not self.rig.runs(name):
            self.rig.stop(name)
            path = self.rig._worker_config(name)
            self.rig.start(name, [*self.rig._worker(), "run", "--always", "--config", str(path)])


class Stream(threading.Thread):
    """One streamed completion: its text, longest time between two chunks, and the error that ended it."""

    def __init__(self, scene: Scene, prompt: str, pause_s: float = 0.0, leave_after: int = 0) -> None:
        """`pause_s`: wait of the reader between chunks; `leave_after`: chunks after which it hangs up."""
        super().__init__(daemon=True)
        self.scene = scene
        self.prompt = prompt
        self.pause_s = pause_s
        self.leave_after = leave_after
        self.text = ""
        self.stall_s = 0.0
        self.chunks = 0
        self.error = ""

    def run(self) -> None:
        """Reads to the end."""
        last = time.monotonic()
        ended = False
        chunks = self.scene.client().chunks(self.scene.body(self.prompt, policy="wanspec"))
        try:
            for chunk in chunks:
                now = time.monotonic()
                self.stall_s = max(self.stall_s, now - last)
                last = now
                self.chunks += 1
                ended = chunk.get("usage") is not None
                for choice in chunk["choices"]:
                    self.text += choice["delta"].get("content") or ""
                if self.chunks == self.leave_after:
                    chunks.close()  # type: ignore[attr-defined]
                    return
                time.sleep(self.pause_s)
            if not ended:  # http.client takes a connection that ends for the end of the text
                self.error = "the stream broke off"
        except (RigError, OSError, ValueError) as error:
            self.error = str(error)

    @property
    def complete(self) -> bool:
        """Whether the text is the fault-free one."""
        return self.text == self.scene.expected[self.prompt]

    @property
    def broke_off(self) -> bool:
        """Whether it ended with an error, and its text up to there is the fault-free one."""
        return bool(self.error) and self.scene.expected[self.prompt].startswith(self.text)


@contextlib.contextmanager
def streams(scene: Scene) -> Iterator[list[Stream]]:
    """One stream a prompt, both begun when the block is entered."""
    running = [Stream(scene, prompt) for prompt in PROMPTS]
    for one in running:
        one.start()
    deadline = time.monotonic() + 30
    while any(one.chunks < 4 and one.is_alive() for one in running) and time.monotonic() < deadline:
        time.sleep(0.002)
    yield running


def at_once(scene: Scene, count: int) -> list[str]:
    """The texts of several completions at the same time; empty if one has not ended after a minute."""
    texts = [""] * count

    def ask(number: int) -> None:
        with contextlib.suppress(RigError, OSError, ValueError):
            texts[number] = scene.answer(PROMPTS[number % len(PROMPTS)])

    asking = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(count)]
    for one in asking:
        one.start()
    for one in asking:
        one.join(60)
    return texts
