"""Consent, bounds and faults of the hook; the scheduler subclass against a scheduler that is not vLLM's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from edgespec_vllm import cpu
from edgespec_vllm import hook as hooks
from edgespec_vllm.guard import MAX_FAILURES, MAX_RETRIES, Guard
from edgespec_vllm.hook import admit, board_user, terms_of
from edgespec_vllm.messages import Chain
from edgespec_vllm.scheduler import HOOKS, make_scheduler, missing

from integrations.vllm.tests.boards import DRAFTS, MAX_LEN, Link, hook, request


@pytest.mark.parametrize(
    ("other", "offloaded"),
    [
        ({}, True),
        ({"consent": "default physics"}, True),
        ({"consent": None}, False),
        ({"consent": ""}, False),
        ({"consent": 1}, False),
        ({"consent": ["default"]}, False),
        ({"consent": "a " * 17}, False),
        ({"consent": "a" * 65}, False),
        ({"temperature": 0.7}, False),
        ({"mm_features": [object()]}, False),
        ({"prompt_token_ids": None}, False),
        ({"resumable": True}, False),
    ],
)
def test_a_request_is_offloaded_only_if_it_may_and_can_be(other: dict[str, Any], offloaded: bool) -> None:
    assert (terms_of(request([1, 2], **other), sampled=False) is not None) is offloaded


def test_consent_is_absent_by_default_and_scopes_follow_the_salt() -> None:
    silent = request([1])
    silent.sampling_params.extra_args = None
    assert terms_of(silent, sampled=True) is None
    one, other, none = (terms_of(request([1], cache_salt=salt), sampled=True) for salt in ("x", "y", None))
    assert one.scope != other.scope
    assert none.scope == b""
    warm = terms_of(request([1], temperature=0.7), sampled=True)
    assert (warm.temperature, warm.top_k) == (0.7, 0)


@pytest.mark.parametrize(
    ("other", "count"),
    [
        ({}, DRAFTS),
        ({"num_computed_tokens": 1}, 0),  # the prompt is not read yet, or it is read again after a preemption
        ({"max_tokens": 9, "num_output_tokens": 7}, 1),
        ({"max_tokens": 9, "num_output_tokens": 8}, 0),
        ({"use_structured_output": True}, 2),
        ({"length": MAX_LEN - 3}, 2),
    ],
)
def test_a_draft_fits_what_the_request_may_still_get(tmp_path: Path, other: dict[str, Any], count: int) -> None:
    link = Link(tmp_path)
    it = hook(link.path, grammar=lambda request, tokens: tokens[:2])
    length = other.pop("length", 3)
    one = request([1] * length, **other)
    it.opened(one)
    it.committed()
    link.received()
    link.send(Chain(1, length, [5] * 9, [1] * 9))
    it.draft([one])
    assert one.spec_token_ids == [5] * count


class Base:
    """A scheduler with the methods of vLLM's that are overridden."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, structured_output_manager: Any, block_size: int) -> None:
        self.running: list[Any] = []
        self.structured_output_manager = structured_output_manager
        self.calls: list[str] = []

    def add_request(self, request: Any) -> None:
        self.running.append(request)

    def schedule(self, throttle_prefills: bool = False) -> list[list[int]]:
        return [request.spec_token_ids for request in self.running]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> str:
        return "outputs"

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        self.calls.append("zeros")

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> str:
        self.running.remove(request)
        return "freed"

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def scheduler(**config_of_it: Any) -> Any:
    usual = {
        "model_config": SimpleNamespace(get_vocab_size=lambda: 100, max_model_len=MAX_LEN),
        "speculative_config": SimpleNamespace(num_speculative_tokens=DRAFTS, method="custom_class"),
        "parallel_config": SimpleNamespace(data_parallel_rank=0),
    }
    config = SimpleNamespace(**usual | config_of_it)
    manager = SimpleNamespace(validate_tokens=lambda request, tokens: tokens)
    return make_scheduler(Base)(config, None, manager, block_size=16)


def test_the_scheduler_opens_drafts_commits_and_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(tmp_path)
    monkeypatch.setenv(hooks.BOARD, link.path)
    it = scheduler()
    one = request([1, 2, 3])
    it.add_request(one)
    assert it.update_from_output(None, None) == "outputs"
    link.received()
    link.send(Chain(1, 3, [7, 8], [1, 1]))
    assert it.schedule() == [[7, 8]]
    it.update_draft_token_ids(None)
    assert it._free_request(one) == "freed"
    assert not it.edgespec.hook.board.streams
    it.shutdown()
    assert it.calls == ["shutdown"]


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(hook: Any, *_: Any) -> None:
    raise KeyError("a fault of the hook")


def count(hook: Any, seen: list[int]) -> None:
    seen.append(1)


def test_a_hook_that_fails_is_off_and_tried_again_a_bounded_number_of_times(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    clock = Clock()
    guard = Guard(lambda: hook(str(tmp_path / "none")), clock)
    seen: list[int] = []
    waits_s: list[float] = []
    for _ in range(MAX_RETRIES + 1):
        for n in range(MAX_FAILURES):
            assert guard.hook is not None
            guard(fail)
            assert guard.failures == n + 1
        assert guard.hook is None
        before = clock.now
        while guard.hook is None and clock.now < before + 10_000:
            clock.now += 10
            guard(count, seen)
        waits_s.append(clock.now - before)

    assert waits_s == [60, 120, 240, 480, 960, 10_000], "the last time it is off for good"
    assert len(seen) == MAX_RETRIES
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == MAX_FAILURES * (MAX_RETRIES + 1)
    assert "failure 1 of 5 in the hook, which costs drafts only: KeyError: 'a fault of the hook'" in lines[0]
    assert lines[MAX_FAILURES - 1].endswith("no drafts from workers for 60 s")
    assert lines[-1].endswith("no drafts from workers until vLLM is started again")


def test_a_fault_of_the_hook_never_reaches_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hooks.BOARD, "/nonexistent/board.sock")
    it = scheduler()
    for n in range(MAX_FAILURES + 3):
        it.add_request(None)  # no request at all: each makes the hook fail
        assert (it.edgespec.hook is None) is (n >= MAX_FAILURES - 1)
    assert it.update_from_output(None, None) == "outputs"


def test_a_hook_that_cannot_be_made_is_off(caplog: pytest.LogCaptureFixture) -> None:
    manager = SimpleNamespace(validate_tokens=None)
    it = make_scheduler(Base)(None, None, manager, block_size=16)
    assert it.edgespec.hook is None
    assert it.schedule() == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"speculative_config": None}, "the speculative method is none"),
        ({"speculative_config": SimpleNamespace(method="ngram")}, "the speculative method is 'ngram'"),
        ({"use_v2_model_runner": True}, "Model Runner V2 takes drafts on the GPU"),
        ({"use_v2_model_runner": False}, None),
        ({}, None),
    ],
)
def test_a_vllm_that_would_ignore_the_drafts_is_named_in_the_log(
    config: dict[str, Any], why: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hooks.BOARD, "/nonexistent/board.sock")
    it = scheduler(**config)
    assert (it.edgespec.hook is None) is (why is not None)
    assert (why or "not connected to the link process") in caplog.text
    assert len(caplog.records) == 1


def test_the_log_says_whether_the_board_is_connected_and_why_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    it = hook(str(tmp_path / "board.sock"))
    clock = Clock()
    it._clock = clock

    def lines() -> list[str]:
        """What was logged since the last call, after some steps."""
        caplog.clear()
        for _ in range(400):
            it.draft([])
            it.committed()
            clock.now += 0.5
        return [record.getMessage() for record in caplog.records]

    it.opened(request([1, 2, 3]))
    (line,) = lines()
    assert "not connected" in line and "board.sock: no link process listens there" in line
    link = Link(tmp_path)
    (line,) = lines()
    assert line.startswith("edgespec: connected to the link process at") and line.endswith("(connection 1)")
    link.received()
    link.send(b"\x01\0\0\0\xc1")
    it.draft([])
    link.drop()
    (line,) = lines()
    assert line.endswith("(connection 2); 1 of its messages were malformed")
    link.received()
    link.drop()
    link._listening.close()
    (line,) = lines()
    assert "no link process listens there" in line


def test_a_link_process_that_comes_and_goes_fills_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    link = Link(tmp_path)
    it = hook(link.path)
    clock = Clock()
    it._clock = clock
    it.opened(request([1, 2, 3]))
    for _ in range(300):
        it.committed()
        if it.board.line.up:
            link.received()
            link.drop()
        it.draft([])
        clock.now += 1
    assert it.board.line.connected > 8
    assert 3 <= len(caplog.records) <= 6


@pytest.mark.parametrize(("value", "user"), [("", None), ("10000", 10000), ("root", 0)])
def test_the_user_of_the_link_process_is_a_number_or_a_name(
    value: str, user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_BOARD_USER", value)
    assert board_user() == user


def test_a_user_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("EDGESPEC_BOARD_USER", "nobody-here")
    assert scheduler().edgespec.hook is None
    assert "'nobody-here', which is no user here: give the user's number" in caplog.text


@pytest.mark.parametrize(
    ("chain", "kept"), [([7, 100, 8], [7]), ([2**31 - 1], []), ([-1, 7], []), ([5] * 9, [5] * 4), ([], [])]
)
def test_a_draft_ends_before_the_first_id_of_no_token_and_at_its_room(chain: list[int], kept: list[int]) -> None:
    assert admit(chain, vocab_size=100, room=4) == kept
    assert admit(chain, vocab_size=100, room=-7) == []


@pytest.mark.parametrize(
    ("grammar", "kept"),
    [
        (lambda tokens: tokens[:1], [7]),
        (lambda tokens: [], []),
        (lambda tokens: [7, 200, 300], [7]),  # only what was proposed goes on
        (lambda tokens: [*tokens, 500], [7, 8]),
        (lambda tokens: None, []),
        (lambda tokens: tokens[99], []),
    ],
)
def test_a_grammar_can_only_shorten_a_draft(grammar: Any, kept: list[int]) -> None:
    assert admit([7, 8], vocab_size=100, room=10, grammar=grammar) == kept


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_a_vllm_without_one_of_the_hooks_keeps_its_own_scheduler(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert missing(Base) == []
    other = type("Other", (Base,), {name: lambda self, renamed, *, further: None})
    assert make_scheduler(other) is other
    assert name in caplog.text
    assert len(caplog.records) == 1


def test_the_repairs_of_the_cpu_build_compute_what_the_kernel_should() -> None:
    torch = pytest.importorskip("torch")

    def apply_top_k_top_p(logits: Any, k: Any, p: Any) -> str:
        k.max()
        return "masked"

    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> None: ...

    sampler = SimpleNamespace(expand_batch_to_tokens=expand_batch_to_tokens, apply_top_k_top_p=apply_top_k_top_p)
    assert cpu.repair(sampler)
    assert cpu.repair(sampler)
    expanded = sampler.expand_batch_to_tokens(
        torch.tensor([0.0, 0.5, 2.0]), torch.tensor([2, 2, 5], dtype=torch.int32), 5, replace_from=0, replace_to=1
    )
    assert expanded.tolist() == [1, 1, 2, 2, 2]
    none = torch.empty(0)
    assert sampler.apply_top_k_top_p(none, none, None) is none
    assert sampler.apply_top_k_top_p(torch.ones(1, 2), torch.ones(1), None) == "masked"
    other = SimpleNamespace(expand_batch_to_tokens=lambda rows: None, apply_top_k_top_p=apply_top_k_top_p)
    assert not cpu.repair(other)
