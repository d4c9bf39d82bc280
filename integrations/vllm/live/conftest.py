"""An engine of vLLM in this process, and a link process whose behaviour a test chooses.

Run by `make test-vllm`, in the environment that `make vllm` makes; `$EDGESPEC_VLLM_MODEL` is the folder of SmolLM2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from edgespec_vllm.hook import BOARD, CONSENT
from edgespec_vllm.messages import Closed, Hello, Opened, Tokens, Want

from integrations.vllm.tests.boards import Link

DRAFTS = 6
MAX_LEN = 384
BLOCKS = 40
BLOCK = 32
ROWS = 32
"""Forty blocks of 32 tokens: ROWS short requests fit, eight long ones preempt one another."""


class Oracle:
    """A link process that wants every request and answers each new token."""

    def __init__(self, folder: Path) -> None:
        self.link = Link(folder)
        self.answer: Callable[[int, list[int]], Sequence[Any]] = lambda number, tokens: []
        """What is sent when the tokens of a request are known up to now."""
        self.known: dict[int, list[int]] = {}

    def pump(self) -> None:
        """Takes in what has come, and answers."""
        for one in self.link.received():
            if isinstance(one, Hello):
                self.known.clear()
            elif isinstance(one, Opened):
                self.known[one.request] = []
                self.link.send(Want(one.request, 0))
            elif isinstance(one, Closed):
                self.known.pop(one.request, None)
            elif isinstance(one, Tokens):
                tokens = self.known[one.request]
                tokens[one.start :] = one.tokens
                if not one.left:
                    self.link.send(*self.answer(one.request, tokens))


class Engine:
    """vLLM, and how it is used here."""

    def __init__(self, oracle: Oracle) -> None:
        from vllm import EngineArgs, LLMEngine

        self.oracle = oracle
        args: dict[str, Any] = {
            "model": os.environ["EDGESPEC_VLLM_MODEL"], "dtype": "float32", "enforce_eager": True, "seed": 0,
            "max_model_len": MAX_LEN, "num_gpu_blocks_override": BLOCKS, "block_size": BLOCK, "max_num_seqs": ROWS,
            "enable_prefix_caching": False, "scheduler_cls": "edgespec_vllm.Scheduler",
            "speculative_config": {
                "method": "custom_class", "model": "edgespec_vllm.Null", "num_speculative_tokens": DRAFTS
            },
        }  # fmt: skip
        self.vllm = LLMEngine.from_engine_args(EngineArgs(**args))
        self.scheduler = self.vllm.engine_core.engine_core.scheduler
        self.accepted = self.count = 0
        """Candidates that the last completions took, and requests so far."""

    @property
    def hook(self) -> Any:
        """The running hook; None if it is off."""
        return self.scheduler.edgespec.hook

    def generate(
        self, prompts: Sequence[list[int]], max_tokens: int, *, offload: bool = True, before: Any = None, **params: Any
    ) -> list[list[int]]:
        """The completions' token ids. `before` is called with the number of each step."""
        from vllm import SamplingParams

        base = self.count
        found = {}
        self.count += len(prompts)
        self.accepted = step = 0
        for n, prompt in enumerate(prompts, base):
            extra = {CONSENT: "default"} if offload else None
            one = SamplingParams(max_tokens=max_tokens, extra_args=extra, **{"temperature": 0.0, **params})
            self.vllm.add_request(str(n), {"prompt_token_ids": list(prompt)}, one)
        while self.vllm.has_unfinished_requests():
            if before is not None:
                before(step)
            lengths = [(one, one.num_output_tokens) for one in self.scheduler.running]
            for output in self.vllm.step():
                if output.finished:
                    found[int(output.request_id)] = list(output.outputs[0].token_ids)
            self.accepted += sum(max(one.num_output_tokens - length - 1, 0) for one, length in lengths)
            if offload and self.hook is not None and self.hook.board.line.up:
                self.oracle.pump()
            step += 1

        return [found[base + n] for n in range(len(prompts))]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    oracle = Oracle(tmp_path_factory.mktemp("board"))
    os.environ[BOARD] = oracle.link.path
    yield Engine(oracle)
