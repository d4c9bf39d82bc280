"""The eviction order of cached prefixes."""

from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.eviction import MAX_IDLE_S, Kept, first_to_go

kept = st.builds(Kept, st.sampled_from([b"", b"a", b"b", b"c"]), st.integers(0, 5), st.floats(0, 2 * MAX_IDLE_S))


def test_useless_ones_go_first_then_idle_ones_then_the_largest_scopes() -> None:
    now = 10 * MAX_IDLE_S
    entries = [
        Kept(b"small", 1, now - 5),
        Kept(b"large", 2, now - 3),
        Kept(b"large", 2, now - 4),
        Kept(b"idle", 9, 1.0),
        Kept(b"", 9, now),
        Kept(b"empty", 0, now),
    ]
    assert first_to_go(entries, now) == [4, 5, 3, 2, 1, 0]


@given(st.lists(kept, max_size=12))
def test_no_small_scope_is_evicted_before_a_larger_one(entries: list[Kept]) -> None:
    now = 2 * MAX_IDLE_S
    order = first_to_go(entries, now)
    assert sorted(order) == list(range(len(entries)))
    size = {scope: sum(one.size for one in entries if one.scope == scope) for scope in (b"a", b"b", b"c")}
    found = [entries[i] for i in order]
    fresh = [one for one in found if one.scope and one.size and now - one.used_at <= MAX_IDLE_S]
    assert [size[one.scope] for one in fresh] == sorted((size[one.scope] for one in fresh), reverse=True)
