"""The walk down a verified tree, losslessly.

The target chooses its own token at every row that it reaches; a candidate only ever saves a pass. So the
answer depends on what the target chooses, never on which candidates were there.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from cloud_gateway.core.verify.flatten import FlatTree


class Walk(Struct, frozen=True):
    """`tokens`: what the target emits, at least one. `rows`: the rows passed, row 0 first, whose KV entries are kept.

    `at_leaf`: the last row had no candidate children, so nothing is known yet of the draft's next token there.
    """

    tokens: list[int]
    rows: list[int]
    at_leaf: bool


def walk(
    flat: FlatTree,
    choose: Callable[[int], int],
    *,
    stop: Callable[[int], bool] = lambda token: False,
    limit: int = 2**31,
    ready: Callable[[int], bool] = lambda row: True,
) -> Walk:
    """Follows the target's choices from row 0 until one is not among the candidates.

    `choose(row)` is the target's token after that row, asked once per row passed, in order of depth; `stop(token)`
    ends the walk after that token (end of sequence), `limit` after so many tokens. The walk also ends before a row
    below row 0 that is not `ready` to be asked; the next pass begins there.
    """
    children = flat.children()
    row, rows, tokens = 0, [0], []
    while True:
        token = choose(row)
        tokens.append(token)
        following = children[row].get(token)
        if following is None or stop(token) or len(tokens) >= limit or not ready(following):
            return Walk(tokens, rows, at_leaf=not children[row])
        row = following
        rows.append(row)


def at_open_end(flat: FlatTree, taken: Walk) -> bool:
    """`taken.at_leaf` as far as drafts go: whether none of a draft's candidates was refuted on the way.

    What a source without a draft model proposed says nothing of where a draft stands.
    """
    if all(node.evidence is None for node in flat.nodes):
        return taken.at_leaf
    children = flat.children()
    for row, token in zip(taken.rows, taken.tokens, strict=True):
        drafted = {tok for tok, child in children[row].items() if flat.nodes[child - 1].drafted}
        if drafted and token not in drafted:
            return False
    return True
