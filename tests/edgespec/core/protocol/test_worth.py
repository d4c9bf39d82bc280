"""The answer to "does this worker help?": one sentence for each cause."""

from __future__ import annotations

import pytest

from edgespec.core.protocol.messages import Books
from edgespec.core.protocol.worth import helps, verdict


@pytest.mark.parametrize(
    ("books", "sentence"),
    [
        (Books(0, 0, 0, 0, 0), "no completion has ended yet in which it drafted"),
        (Books(120, 60, 80, 40, 2), "wrote 50% of the tokens (60 of 120): too few to judge"),
        (
            Books(2457, 157, 194, 1111, 791),
            "wrote 6% of the tokens (157 of 2457): not worth it now, because 71% of its frames came too late",
        ),
        (
            Books(1000, 50, 500, 300, 10),
            (
                "wrote 5% of the tokens (50 of 1000): not worth it now, because the target accepted 10% of the 500 "
                "candidates that were verified"
            ),
        ),
        (
            Books(1000, 0, 0, 0, 0),
            "wrote 0% of the tokens (0 of 1000): not worth it now, because none of its frames arrived",
        ),
        (
            Books(1000, 0, 0, 9, 1),
            "wrote 0% of the tokens (0 of 1000): not worth it now, because none of its candidates was verified",
        ),
        (
            Books(1000, 400, 500, 300, 200),
            "wrote 40% of the tokens (400 of 1000) and so saved 400 passes of the target: it helps",
        ),
    ],
)
def test_each_situation_has_one_sentence(books: Books, sentence: str) -> None:
    assert verdict(books) == sentence
    assert helps(books) == (10 * books.accepted >= max(books.tokens, 1))
