"""Names of machines: look-alike characters are not allowed, and no two names are the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.protocol.messages import Name
from edgespec.core.protocol.names import MAX_NAME, free_name

NAMES = st.from_regex(r"[A-Za-z0-9]( ?[A-Za-z0-9._@+-]){0,62}", fullmatch=True).filter(lambda name: len(name) <= 64)


@pytest.mark.parametrize("name", ["lab-7", "desk 7", "a", "A.b_c@d+e-f", "7", "x" * 64])
def test_plain_names_are_allowed(name: str) -> None:
    assert msgspec.convert(name, Name) == name


@pytest.mark.claim("a-worker-named-like-an-id-does-not-catch-its-revocation")
@pytest.mark.parametrize(
    "name",
    [
        "",
        " lab",
        "lab  7",
        "-rf",
        "l\u0430b",  # Cyrillic
        "lab (7ba1073c5e2f9d40)",
        "lab\n",
        "x" * 65,
    ],
)
def test_names_that_look_like_others_are_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)


@given(st.lists(NAMES, max_size=5), NAMES)
def test_a_free_name_is_a_name_and_is_not_taken(taken: list[str], requested: str) -> None:
    names: list[str] = []
    for one in [*taken, requested, requested, requested.swapcase(), requested]:
        names.append(free_name(one, names))
    assert len({name.casefold() for name in names}) == len(names)
    assert all(msgspec.convert(name, Name) == name and len(name) <= MAX_NAME for name in names)
