"""The one gate between drafts from outside and vLLM.

vLLM trusts its own drafters. One token id beyond the vocabulary, or a list longer than `num_speculative_tokens`, ends
the whole server. So every draft passes `admit`, which is total: any input gives a list that vLLM can verify.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Grammar = Callable[[list[int]], list[int]]
"""The longest prefix of draft tokens that the request's grammar allows."""


def admit(
    chain: object,
    start: object,
    committed: Sequence[int],
    *,
    vocab_size: int,
    limit: int,
    room: int,
    grammar: Grammar | None = None,
) -> list[int]:
    """The draft tokens of `chain` that continue `committed`; `[]` for anything that does not. Never raises.

    `chain[0]` stands at position `start` of the sequence, so that a chain may repeat committed tokens, which must be
    equal. The rest is cut at the first id outside `0 <= id < vocab_size`, to `limit` (`num_speculative_tokens`), to
    `room` (tokens that the request may still get beside the one that the target adds), and to what `grammar` allows.
    """
    if type(chain) not in (list, tuple) or type(start) is not int or start < 0:
        return []
    behind = len(committed) - start
    if behind < 0 or list(chain[:behind]) != list(committed[start:]):  # type: ignore[index]
        return []
    kept: list[int] = []
    for token in chain[behind : behind + max(min(limit, room), 0)]:  # type: ignore[index]
        if type(token) is not int or not 0 <= token < vocab_size:
            break
        kept.append(token)
    if not kept or grammar is None:
        return kept
    try:
        allowed = grammar(kept.copy())
        return kept[: next((n for n, (a, b) in enumerate(zip(kept, allowed)) if a != b), min(len(kept), len(allowed)))]
    except Exception:  # noqa: BLE001  a grammar that fails costs drafts, never the engine
        return []
