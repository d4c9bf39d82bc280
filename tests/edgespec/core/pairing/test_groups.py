"""Names of groups."""

import pytest

from edgespec.core.pairing.groups import DEFAULT_GROUPS, MAX_GROUPS, OWN_GROUP, parse_groups


def test_a_name_counts_once_and_none_is_the_default() -> None:
    assert parse_groups(["lab", "lab", "b"]) == ("lab", "b")
    assert parse_groups([]) == DEFAULT_GROUPS
    with pytest.raises(ValueError, match=f"at most {MAX_GROUPS}"):
        parse_groups(f"g{n}" for n in range(MAX_GROUPS + 1))


@pytest.mark.claim("it-drafts-for-every-key-and-is-replaced-when-it-dies")
def test_the_group_of_the_gateways_own_worker_is_reserved() -> None:
    with pytest.raises(ValueError, match="gateway's own worker"):
        parse_groups(["lab", OWN_GROUP])
