"""Prefix hashes: the incremental one against the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.protocol.digests import Prefix, prefix_hash

tokens = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20)


@given(st.lists(tokens, min_size=1, max_size=6))
def test_every_boundary_has_the_hash_of_all_tokens_before_it(pieces: list[list[int]]) -> None:
    prefix, everything = Prefix(), []
    for piece in pieces:
        prefix.extend(piece)
        everything += piece
        assert prefix.digest == prefix_hash(everything) == prefix.digest_at(len(everything))
    for length in range(1, len(everything) + 1):
        assert prefix.digest_at(length) == prefix_hash(everything[:length])


def test_a_prefix_matches_its_own_boundaries_only() -> None:
    prefix = Prefix([1, 2])
    prefix.extend([3])
    assert prefix.matches(2, prefix_hash([1, 2])) and prefix.matches(3, prefix_hash([1, 2, 3]))
    assert not prefix.matches(3, prefix_hash([1, 2, 4]))
    assert not prefix.matches(4, prefix_hash([1, 2, 3, 4]))
