"""Names of machines and of groups: no look-alike characters, no two machines of one name, one group reserved."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.pairing.groups import DEFAULT_GROUPS, MAX_GROUPS, OWN_GROUP, parse_groups
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


def test_a_name_counts_once_and_none_is_the_default() -> None:
    assert parse_groups(["lab", "lab", "b"]) == ("lab", "b")
    assert parse_groups([]) == DEFAULT_GROUPS
    with pytest.raises(ValueError, match=f"at most {MAX_GROUPS}"):
        parse_groups(f"g{n}" for n in range(MAX_GROUPS + 1))


@pytest.mark.claim("it-drafts-for-every-key-and-is-replaced-when-it-dies")
def test_the_group_of_the_gateways_own_worker_is_reserved() -> None:
    with pytest.raises(ValueError, match="gateway's own worker"):
        parse_groups(["lab", OWN_GROUP])
