"""An answer that a worker writes for a request that waits: frame by frame, which are asked for, and how long it may be
silent.
"""

from __future__ import annotations

import pytest

from cloud_gateway.parts.queued_answers.jobs import MAX_AGAIN, Askings
from cloud_gateway.parts.queued_answers.workers import MIN_PATIENCE_S, patience
from cloud_gateway.parts.queued_answers.written import NODES_PER_TOKEN, WrittenAnswer
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import MAX_DEPTH, Close, Commit, Open, Sampling, Tree
from tools.doubles.model import plain_greedy
from tools.doubles.workers import LoopWorker

PROMPT = [3, 1, 4, 1, 5]
NUMBER = 7


def written(answer: WrittenAnswer, *, late: int = 0) -> list[Commit]:
    """Lets a worker whose draft is the target write all of it, its frames `late` commits old; all commits."""
    worker = LoopWorker(right=1.0)
    commits = list[Commit]()
    under_way = list[list[Tree]]()
    for body in answer.open(Sampling(), b"scope"):
        assert isinstance(body, Open) and (body.request, body.cache_scope) == (NUMBER, b"scope")
        drafting = worker.receive(body)
    while not answer.done:
        for _ in range(3):
            worker.step(drafting)
        under_way.append(list(iter(drafting.delta, None)))
        for frame in under_way.pop(0) if len(under_way) > late else ():
            assert answer.merge(frame, "w").prefix
        if (commit := answer.advance()) is not None:
            worker.receive(commit)  # which compares length and hash
            commits.append(commit)
        assert len(commits) < 200
    return commits


def chain(tokens: list[int], first: int = 1, epoch: int = 1, parents: list[int] | None = None) -> Tree:
    """A frame below the prompt."""
    count = len(tokens)
    parents = [0, *range(first, first + count - 1)] if parents is None else parents
    return Tree(NUMBER, epoch, len(PROMPT), prefix_hash(PROMPT), first, parents, tokens, [1] * count, [1] * count)


@pytest.mark.parametrize("late", [0, 2])
def test_a_worker_is_led_through_a_whole_answer(late: int) -> None:
    answer = WrittenAnswer(NUMBER, PROMPT, 40, frozenset())
    commits = written(answer, late=late)
    assert list(answer.tokens) == plain_greedy(PROMPT, 40)
    assert len(commits) > 3 and {(one.pass_us, one.period_us, one.depth) for one in commits} == {(0, 0, 0)}
    assert answer.close("written") == Close(NUMBER, 1, "written")


def test_it_ends_with_the_first_token_that_ends_a_completion() -> None:
    right = plain_greedy(PROMPT, 40)
    answer = WrittenAnswer(NUMBER, PROMPT, 40, {right[10]})
    written(answer)
    assert list(answer.tokens) == right[: right.index(right[10]) + 1]


def test_what_a_frame_brings_after_the_last_token_is_not_written() -> None:
    answer = WrittenAnswer(NUMBER, PROMPT, 40, {8})
    answer.merge(chain([7, 8, 9, 8]), "w")
    assert answer.advance() == Commit(NUMBER, 1, len(PROMPT), [7, 8], prefix_hash([*PROMPT, 7, 8]))
    assert answer.done and answer.advance() is None


def test_one_frame_brings_no_more_than_the_longest_answer() -> None:
    answer = WrittenAnswer(NUMBER, PROMPT, 5, frozenset())
    answer.merge(chain([7] * MAX_DEPTH), "w")
    assert answer.advance() == Commit(NUMBER, 1, len(PROMPT), [7] * 5, prefix_hash([*PROMPT, *[7] * 5]))
    assert answer.done and answer.advance() is None


@pytest.mark.parametrize(
    ("frame", "reason"),
    [(chain([7], first=2), "shape-ids"), (chain([8], MAX_DEPTH + 1, parents=[MAX_DEPTH]), "shape-depth")],
)
def test_what_breaks_the_protocol_for_candidates_breaks_it_here(frame: Tree, reason: str) -> None:
    answer = WrittenAnswer(NUMBER, PROMPT, 100, frozenset())
    if reason == "shape-depth":
        answer.merge(chain([7] * MAX_DEPTH), "w")
    with pytest.raises(RemoteProtocolError) as refused:
        answer.merge(frame, "w")
    assert refused.value.reason == reason


def test_frames_of_another_epoch_or_prefix_bring_nothing() -> None:
    answer = WrittenAnswer(NUMBER, PROMPT, 40, frozenset())
    assert answer.merge(chain([7], epoch=2), "w").stale == 1
    foreign = Tree(NUMBER, 1, 2, prefix_hash([9, 9]), 1, [0], [7], [1], [1])
    assert not answer.merge(foreign, "w").prefix
    assert answer.advance() is None and not answer.tokens


@pytest.mark.claim("a-workers-answer-saves-passes-and-changes-no-token")
def test_a_worker_that_repeats_itself_takes_bounded_memory() -> None:
    answer = WrittenAnswer(NUMBER, PROMPT, 10, frozenset())
    first = 1
    while not answer.done:
        answer.merge(chain([7], first, parents=[0]), "w")
        answer.advance()
        first += 1
    assert first - 1 == NODES_PER_TOKEN * 10 and list(answer.tokens) == [7]


def test_each_answer_is_asked_for_once_and_a_lost_one_before_the_next() -> None:
    askings = Askings()
    assert [askings.take(), askings.take()] == [0, 1]
    askings.lose(1, "b")
    askings.lose(0, "a")
    assert askings.lost_by == {"a", "b"}
    assert [askings.take() for _ in range(3)] == [0, 1, 2]


def test_lost_answers_are_asked_for_again_a_few_times_only() -> None:
    askings = Askings()
    numbers = []
    for turn in range(20):
        numbers.append(askings.take())
        askings.lose(numbers[-1], f"worker {turn}")
    assert numbers[: MAX_AGAIN + 2] == [*[0] * (MAX_AGAIN + 1), 1]
    assert numbers == sorted(numbers) and len(set(numbers)) == 20 - MAX_AGAIN


def test_nothing_is_asked_for_once_it_was_stopped() -> None:
    askings = Askings()
    askings.lose(askings.take(), "a")
    askings.stop()
    askings.lose(0, "b")
    assert askings.next >= 8


def test_far_and_slow_workers_and_long_prompts_are_given_more_time() -> None:
    assert patience(0, 0, 1000) == MIN_PATIENCE_S
    assert patience(0.5, 0, 0) == MIN_PATIENCE_S + 0.5
    assert patience(0, 0.1, 0) == pytest.approx(MIN_PATIENCE_S + 1.6)
    assert patience(0, 0.1, 100) == pytest.approx(MIN_PATIENCE_S + 6.6), "a step for two tokens of the prompt"
