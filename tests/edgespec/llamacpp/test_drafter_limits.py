"""The drafter's refusals: too little memory, invalid tokens, files that are no models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgespec.llamacpp.context
import edgespec.llamacpp.drafter
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import TokenPath, best_children
from edgespec.core.errors import ConfigError, ModelError
from edgespec.llamacpp.drafter import Drafter, DraftMemoryError, DraftTokenError
from edgespec.shared.vocabfiles import gguf_vocabulary
from tests.support.slow_drafter import SlowDrafter
from tests.support.thread_rules import Alternating
from tests.support.tiny_gguf import make_tiny_gguf

TOLERANCE = 0.05
"""Nats. Cells are float16, and batches run through other kernels than single tokens. A wrong cell shows more."""
PROMPT = [1, 10, 20, 30, 40, 11, 21, 31, 41, 12]


# --- limits -------------------------------------------------------------------------------------------------------


def test_without_free_sequence_ids_the_tip_idle_longest_is_dropped(
    model: Path, slow: SlowDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edgespec.llamacpp.drafter, "IDS_PER_REQUEST", 1)
    drafter = Drafter(model, context=512, sequences=3, requests=2)
    drafter.open("closed", PROMPT[:2], b"s")
    drafter.step("closed", [()], 1)
    drafter.close("closed")
    drafter.open("a", PROMPT)
    drafter.open("b", PROMPT[:4])
    drafter.step("b", [(9,)], 1)
    for paths in ([(3,), (4,), (5,)], [(6,), (7,)], [(3, 8), (6, 8)], [(4, 8), (5, 8), (7, 8)]):
        for path, proposal in zip(paths, drafter.step("a", paths, 2), strict=True):
            slow.check([*PROMPT, *path], proposal, TOLERANCE)
    assert not drafter._free
    # Three leaves beside three others whose cells they share: nothing else can be kept.
    drafter.step("a", [(3, 1, 1), (4, 1, 1), (5, 1, 1)], 1)
    beside = [(3, 1, 2), (4, 1, 2), (5, 1, 2)]
    for path, proposal in zip(beside, drafter.step("a", beside, 2), strict=True):
        slow.check([*PROMPT, *path], proposal, TOLERANCE)
    slow.check([*PROMPT[:4], 9, 9], drafter.step("b", [(9, 9)], 2)[0], TOLERANCE)
    drafter.shutdown()


def test_without_free_cells_cached_prefixes_are_dropped_before_idle_tips(model: Path, slow: SlowDrafter) -> None:
    drafter = Drafter(model, context=256, sequences=4, requests=3)
    long = [i % 50 for i in range(120)]
    drafter.open("old", [5, *long], b"s")
    drafter.step("old", [()], 1)
    drafter.close("old")
    for name in ("a", "b"):
        drafter.open(name, [ord(name) % 64, *long])
        drafter.catch_up(name, 999)
    assert drafter.open("c", [5, *long], b"s") == 0, "the closed prefix had to go"
    drafter.step("a", [(i, i, i) for i in range(3)], 1)
    with pytest.raises(DraftMemoryError, match="256 KV cells are full"):
        drafter.catch_up("c", 999)
    assert drafter.catch_up("c", 9) == 111
    for name in ("a", "b"):
        slow.check([ord(name) % 64, *long, 1], drafter.step(name, [(1,)], 2)[0], TOLERANCE)
    drafter.close("a", keep=False)
    drafter.catch_up("c", 999)
    slow.check([5, *long, 1], drafter.step("c", [(1,)], 2)[0], TOLERANCE)
    drafter.shutdown()


def test_the_smallest_settings_work(model: Path, slow: SlowDrafter) -> None:
    drafter = Drafter(model, context=1, sequences=1, requests=1, prefill_batch=1)
    drafter.open("r", [5])
    slow.check([5], drafter.step("r", [()], 2)[0], TOLERANCE)
    drafter.shutdown()
    drafter = Drafter(model, context=100, sequences=32, requests=64, prefill_batch=16)
    drafter.open("r", [5] * 90)
    paths = [(1, 2, i, 3) for i in range(32)]
    for path, proposal in zip(paths, drafter.step("r", paths, 1), strict=True):
        slow.check([*[5] * 90, *path], proposal, TOLERANCE)
    drafter.shutdown()


def test_more_requests_or_tokens_than_there_is_room_for_are_refused(drafter: Drafter) -> None:
    for request in range(4):
        drafter.open(request, [request])
    with pytest.raises(DraftMemoryError, match="4 requests already"):
        drafter.open(4, [1])
    drafter.close(0)
    with pytest.raises(DraftMemoryError, match="600 tokens are more than the draft model's context of 512"):
        drafter.open(4, [1] * 600)
    drafter.open(4, [1] * 505)
    drafter.step(4, [(1,) * 7], 1)
    with pytest.raises(DraftMemoryError, match="513 tokens"):
        drafter.step(4, [(1,) * 8], 1)
    drafter.commit(4, [1] * 20)
    with pytest.raises(DraftMemoryError, match="context"):
        drafter.catch_up(4, 1000)
    drafter.close(4)


def test_a_model_is_not_used_beyond_the_context_that_it_was_trained_for(tmp_path: Path) -> None:
    drafter = Drafter(make_tiny_gguf(tmp_path / "short.gguf", context=100), context=512)
    assert drafter.context == 100
    with pytest.raises(DraftMemoryError):
        drafter.open("r", [1] * 101)
    drafter.shutdown()


@pytest.mark.parametrize("bad", [[64], [-1], [2**31 - 1]])
def test_a_token_outside_the_vocabulary_is_refused_before_evaluation(bad: list[int], drafter: Drafter) -> None:
    with pytest.raises(ValueError, match="vocabulary of 64"):
        drafter.open("r", bad)
    drafter.open("r", PROMPT)
    with pytest.raises(ValueError, match="vocabulary of 64"):
        drafter.commit("r", bad)
    with pytest.raises(ValueError, match="vocabulary of 64"):
        drafter.step("r", [tuple(bad)], 1)
    assert len(drafter.step("r", [()], 1)) == 1


def test_more_leaves_than_agreed_and_a_second_open_are_bugs_of_the_caller(drafter: Drafter) -> None:
    drafter.open("r", PROMPT)
    with pytest.raises(ValueError, match="1 to 8 leaves"):
        drafter.step("r", [(i,) for i in range(9)], 1)
    with pytest.raises(ValueError, match="1 to 8 leaves"):
        drafter.step("r", [], 1)
    with pytest.raises(ValueError, match="open already"):
        drafter.open("r", PROMPT)


# --- cells of several scopes --------------------------------------------------------------------------------------

LARGE = [i % 50 for i in range(248)]
SMALL = [i % 7 for i in range(40)]
CLAIM = pytest.mark.claim("no-key-takes-the-drafts-memory-from-one-that-holds-less")


def crowded(model: Path) -> Drafter:
    """Three prompts of one scope in 768 cells."""
    drafter = Drafter(model, context=768, sequences=4, requests=8)
    for name in "xyz":
        drafter.open(name, [ord(name) % 64, *LARGE], b"large")
        drafter.catch_up(name, 999)
    return drafter


@CLAIM
def test_a_small_scope_gets_cells_from_the_one_that_holds_most(model: Path, slow: SlowDrafter) -> None:
    drafter = crowded(model)
    drafter.open("v", SMALL, b"small")
    slow.check([*SMALL, 1], drafter.step("v", [(1,)], 2)[0], TOLERANCE)
    assert [drafter.backlog(name) for name in "xyz"] == [1, 1, 249], "the youngest of the others gave way"
    for name in "xy":
        slow.check([ord(name) % 64, *LARGE, 1], drafter.step(name, [(1,)], 2)[0], TOLERANCE)
    with pytest.raises(DraftMemoryError, match="768 KV cells are full"):
        drafter.catch_up("z", 999)
    drafter.close("v")
    drafter.close("y", keep=False)
    drafter.catch_up("z", 999)
    slow.check([ord("z") % 64, *LARGE, 1], drafter.step("z", [(1,)], 2)[0], TOLERANCE)
    drafter.shutdown()


@CLAIM
def test_a_small_request_that_drafts_loses_nothing_to_large_prompts(model: Path, slow: SlowDrafter) -> None:
    drafter = Drafter(model, context=768, sequences=4, requests=8)
    drafter.open("v", SMALL, b"small")
    drafter.step("v", [(1,), (2,)], 1)
    for number, name in enumerate("wxyz"):
        drafter.open(name, [number, *LARGE], b"large")
        if number < 2:
            drafter.catch_up(name, 999)
        else:
            with pytest.raises(DraftMemoryError):
                drafter.catch_up(name, 999)
                drafter.step(name, [(1,) * 9, (2,) * 9, (3,) * 9, (4,) * 9], 1)
    rows = drafter.rows
    for path, proposal in zip([(1, 5), (2, 5)], drafter.step("v", [(1, 5), (2, 5)], 2), strict=True):
        slow.check([*SMALL, *path], proposal, TOLERANCE)
    assert drafter.rows - rows <= 4, "its prompt was still there"
    drafter.shutdown()


@CLAIM
def test_requests_of_equal_need_do_not_take_cells_back_and_forth(model: Path) -> None:
    drafter = Drafter(model, context=768, sequences=4, requests=8)
    for name in "wxyz":
        drafter.open(name, [ord(name) % 64, *LARGE], name.encode())
    refused = []
    for _ in range(5):
        for name in "wxyz":
            try:
                drafter.catch_up(name, 999)
                drafter.step(name, [(1,), (2,)], 1)
            except DraftMemoryError:
                refused.append(name)
    assert set(refused) == {"z"}
    assert drafter.rows <= 3 * (249 + 5 * 2)
    drafter.shutdown()


# --- bad files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "head", "cut", "folder"])
def test_an_unusable_file_is_one_sentence_and_nothing_on_stderr(
    kind: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = model.read_bytes()
    path = tmp_path / "draft.gguf"
    contents = {"empty": b"", "text": b"not a model\n" * 99, "head": whole[:3000], "cut": whole[:-5000]}
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(contents[kind])
    with pytest.raises(ModelError, match=r"draft\.gguf") as caught:
        Drafter(path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_loading_and_drafting_print_nothing(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    drafter = Drafter(model, context=256)
    drafter.open("r", PROMPT)
    drafter.step("r", [(1,), (2,)], 1)
    drafter.shutdown()
    assert capfd.readouterr() == ("", "")


def test_a_context_that_memory_cannot_hold_is_refused_before_it_is_touched(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2**26 < edgespec.llamacpp.context.available_memory() < 2**50
    monkeypatch.setattr(edgespec.llamacpp.context, "available_memory", lambda: 100e6)
    with pytest.raises(ModelError, match=r"1048576 tokens of .* needs 0\.1 GB .* 0\.1 GB .*: lower `context`"):
        Drafter(model, context=2**20)
    Drafter(model, context=2**19).shutdown()


@pytest.mark.parametrize("wrong", [{"context": 0}, {"sequences": 33}, {"requests": -1}, {"threads": -1}])
def test_an_impossible_setting_names_its_key_and_range(wrong: dict[str, int], model: Path) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=rf"`{name}` = .*: choose [01] to"):
        Drafter(model, **wrong)


def test_unused_entries_at_the_end_of_the_vocabulary_are_never_proposed(tmp_path: Path) -> None:
    """A target with fewer of them would refuse such a candidate, and end the link of a correct worker."""
    path = make_tiny_gguf(tmp_path / "padded.gguf", vocab=300, unused=20)
    drafter = Drafter(path, context=512)
    lengths: set[int] = set()

    def everything(logits: NDArray[np.float32], path: TokenPath, width: int) -> Proposal:
        lengths.add(len(logits))
        return best_children(logits, path, len(logits))

    drafter.open("r", PROMPT)
    (found,) = drafter.step("r", [()], 1, everything)
    assert drafter.vocab_size == 280 and lengths == {280} and sorted(found.tokens) == list(range(280))
    with pytest.raises(DraftTokenError):
        drafter.commit("r", [280])
    drafter.shutdown()


def test_unused_entries_do_not_change_the_digest(tmp_path: Path) -> None:
    padded = gguf_vocabulary(make_tiny_gguf(tmp_path / "a.gguf", vocab=300, unused=20))
    assert len(padded.entries) == 280
    assert len(gguf_vocabulary(make_tiny_gguf(tmp_path / "b.gguf", vocab=300, unused=0)).entries) == 300
    assert padded.digest == gguf_vocabulary(make_tiny_gguf(tmp_path / "c.gguf", vocab=310, unused=30)).digest


def test_a_rule_of_threads_is_called_at_each_pass(model: Path) -> None:
    rule = Alternating()
    drafter = Drafter(model, context=256, threads=0, thread_rule=rule)
    drafter.open("a", [5, 6, 7])
    drafter.step("a", [()], 2)
    drafter.close("a")
    drafter.idle()
    assert rule.calls == ["use [1, 2] for the draft model", "begin", "3 rows", "idle"]
    drafter.shutdown()


def test_a_configured_number_of_threads_is_not_left_to_a_rule(model: Path) -> None:
    rule = Alternating()
    Drafter(model, context=256, threads=1, thread_rule=rule).shutdown()
    assert rule.calls == []
