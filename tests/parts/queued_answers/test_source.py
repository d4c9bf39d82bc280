"""The source that looks for the text so far in other answers to the prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.parts.queued_answers.source import MAX_TOKENS, NONE, REACH, Answers

TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=24)
PROMPT = [*range(100, 120)]
"""A text as long as the longest match that is distinguished."""


def source(*answers: list[int], prompt: list[int] = PROMPT) -> Answers:
    made = Answers(prompt)
    assert all(made.add(answer) for answer in answers)
    made.committed(prompt)
    return made


def slowly(texts: list[list[int]], text: list[int]) -> set[int]:
    """The tokens after the longest end of the text that occurs in any of the texts, by trying all."""
    for length in range(len(text), 0, -1):
        ends = [
            (one, at + length)
            for one in texts
            for at in range(len(one) - length + 1)
            if one[at : at + length] == text[-length:]
        ]
        if ends:
            return {one[at] for one, at in ends if at < len(one)}
    return set()


@given(st.lists(TEXT, min_size=1, max_size=3), TEXT)
def test_candidates_follow_the_longest_match_of_the_slow_twin(answers: list[list[int]], text: list[int]) -> None:
    made = source(*answers)
    made.rate.learn(1, right=True)
    made.committed(text)
    firsts = {one.token for one in made.propose(8) if one.parent == -1}
    wanted = slowly([[*PROMPT, *answer] for answer in answers], [*PROMPT, *text])
    assert firsts <= wanted and (bool(firsts) == (made.why is None))


def test_an_answer_that_comes_later_continues_where_the_text_is() -> None:
    made = source()
    made.committed([1, 2])
    assert made.propose(4) == () and made.why == NONE
    assert made.add([1, 2, 3, 4])
    assert [one.token for one in made.propose(4)] == [3, 4]


def test_no_candidate_runs_from_one_answer_into_the_next() -> None:
    made = source([1, 2], [3, 4])
    assert {one.token for one in made.propose(8)} == {1, 2, 3, 4}
    made.committed([1, 2])
    assert not made.propose(8) and made.why is not None


def test_an_answer_that_goes_another_way_is_found_again_further_on() -> None:
    made = source([1, 2, 3, 4, 5, 6])
    made.committed([9, 3, 4, 5])
    assert [one.token for one in made.propose(2)] == [6]


def test_a_source_whose_answers_mislead_falls_silent_and_says_why() -> None:
    made = source([1, 5, 1, 6, 1, 7], prompt=[0])
    for number in range(100, 140):
        made.committed([1, number])
    made.committed([1])
    assert made.propose(4) == () and made.why is not None and "right" in made.why


def test_there_is_room_for_so_many_tokens_and_no_more() -> None:
    made = Answers(PROMPT)
    assert made.add([1] * (MAX_TOKENS // 2)) and not made.add([1] * (MAX_TOKENS // 2)) and not made.add([])
    assert made.count == 1 and REACH <= MAX_TOKENS


def test_earlier_completions_are_given_once_and_no_earlier_than_the_prompt() -> None:
    """Given again, they would take the room of further ones and count twice."""
    earlier = [[1, 2, 3, 4]]
    made = Answers(PROMPT, lambda: earlier)
    assert made.count == 0
    made.committed(PROMPT)
    made.committed([1, 2])
    assert made.count == 1
    assert [suggestion.token for suggestion in made.propose(4)] == [3, 4]
