"""What a candidate tree and an action are worth: tokens at their price, less time and passes.

Policy `adaptive` maximises tokens emitted per second. That is the same as choosing at each moment the largest of
`token_s * tokens - seconds`, where `token_s` is the seconds per token that the policy attains (Dinkelbach 1967): the
best action has a value near zero, and one of greater value lowers the seconds per token. Values are in seconds.

Requests that share passes wait for each other's rows and drafts, so that the tokens of all count: with n others of the
same pace, one comes n + 1 times as fast, and is worth that much less of everybody's time.

How likely a node is the target's: a draft's probability counts, times how often its candidates were right for each
time they said so. Workers send calibrated probabilities, the local draft's are calibrated here, and what is left of
their error differs little from token to token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, inf, log
from operator import attrgetter, itemgetter

from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node

MAX_RUN = 16
"""Levels of one run that are looked ahead; deeper ones are too unlikely to matter."""
SPAN = 4
"""Rows over which the time of one more row is a mean, since curves have steps."""


class Prices:
    """What a token is worth and what a pass over so many candidates takes, in seconds."""

    __slots__ = ("_rows_s", "alone", "base", "probe", "shared", "token_s", "verify_s")

    def __init__(self, costs: Costs, token_s: float) -> None:
        """`token_s`: this request's own seconds per token."""
        self.base = 1 + costs.other_rows
        """Rows beside the candidates: the root, and what other requests put into the same pass."""
        self.verify_s: Callable[[int], float] = costs.verify_s
        self.token_s, self.shared = token_s / (1 + costs.sharers), costs.sharers > 0
        self._rows_s, self.alone = costs.rows_s, not costs.rows_s
        self.probe = None if costs.probe is None else (costs.probe[0] - self.base, costs.probe[1])
        """A number of candidates to try, and the least seconds that their pass can take."""

    def pass_s(self, candidates: int) -> float:
        """Seconds of a pass over so many candidates."""
        return self.verify_s(self.base + candidates)

    def rows_s(self, known: int, limit: int) -> Sequence[float]:
        """What each candidate's row takes, from the first one to the last that a pass may have (`Costs.rows_s`). For
        one alone: as a row behind those known."""
        return self._rows_s or [max((self.pass_s(known + SPAN) - self.pass_s(known)) / SPAN, 0.0)] * limit

    def best_count(self, survival: Sequence[float]) -> int:
        """How many of the candidates to verify: argmax over n of token_s * sum(survival[:n]) - pass_s(n), where the
        number on offer as a probe takes the least that it can."""
        verify_s, token_s, rows = self.verify_s, self.token_s, self.base
        best, count, gained = -verify_s(rows), 0, 0.0
        for n, chance in enumerate(survival, 1):
            gained += chance * token_s
            net = gained - verify_s(rows + n)
            if net > best:
                best, count = net, n
        if self.probe is not None and 0 <= self.probe[0] <= len(survival):
            tried, least_s = self.probe
            count = tried if token_s * sum(survival[:tried]) - least_s > best else count
        return count


class Level:
    """Value of the candidates that one draft step is expected to find, beside those known already: each pays for its
    row, and only the likeliest `limit` are verified."""

    __slots__ = ("_alone", "_had_s", "_known", "_limit", "_rows_s", "_token_s")

    def __init__(self, prices: Prices, survival: Sequence[float], limit: int) -> None:
        """`survival`: of the candidates known, in falling order."""
        known = self._known = survival[:limit]
        self._limit, self._token_s, self._alone = limit, prices.token_s, prices.alone
        self._rows_s = prices.rows_s(len(known), limit)
        self._had_s = self._paid(known)

    def value_s(self, found: Sequence[float]) -> float:
        """`found`: the survival of what the step finds."""
        return self._paid(sorted([*self._known, *found], reverse=True)[: self._limit]) - self._had_s

    def _paid(self, falling: Sequence[float]) -> float:
        """What the best number of these is worth beyond their rows."""
        token_s, value, best = self._token_s, 0.0, 0.0
        for chance, row_s in zip(falling, self._rows_s):
            value += token_s * chance - row_s
            if value > best:
                best = value
            elif self._alone:  # no further one pays either
                break
        return best


def run_s(first_s: float, fade: float, step_s: float, had_s: Sequence[float] = ()) -> float:
    """What local levels in a row are worth beyond their time, at the best number of levels: the first one is worth
    `first_s`, each further one `fade` of the one before, less what candidates below the same leaf save there already.

    `had_s`: what those of sources without a model save at each level; `first_s` contains that of the first one. They
    are less likely from level to level than what a draft finds, so that a run may pay though its first level does not.
    """
    best, value, level = 0.0, 0.0, first_s
    for depth in range(MAX_RUN):
        value = value + level - (had_s[depth] if depth < len(had_s) else 0.0) - step_s
        best = max(best, value)
        if level <= step_s:
            break
        level *= fade
    return best


def run_tokens(first_s: float, fade: float, step_s: float, token_s: float) -> float:
    """Tokens that the levels of such a run bring, those that pay for themselves."""
    tokens, level = 0.0, first_s
    for _ in range(MAX_RUN):
        if level <= step_s:
            break
        tokens += level / token_s
        level *= fade
    return tokens


def per_pass_s(first_s: float, fade: float, step_s: float, instead_s: float) -> float:
    """The most that a pass saves on average: max over d of (value of d levels - `instead_s`) / d."""
    best, value, level = 0.0, -instead_s, first_s
    for levels in range(1, MAX_RUN + 1):
        value += level - step_s
        best = max(best, value / levels)
        level *= fade
    return best


def credit(kept: float, levels: float) -> float:
    """Share of a level's worth that is lost where it is not in this pass but the worker has it for the next one.

    The next pass then verifies it with the levels that come meanwhile: 1 + kept + ... + kept^(levels + 1) tokens, where
    it would have been 1 + kept + ... + kept^levels. So kept^(levels + 1) of the level's worth comes back.
    """
    made_good: float = kept ** (levels + 1)
    return 1 - min(levels, 1.0) * made_good


def wait_value(chance: float, soon_s: float, late_s: float, run_s: float) -> float:
    """Value of waiting for a frame that comes in `soon_s` and is useful with this chance; where it is not, a useful
    one comes in `late_s`, if that is still worth it. `run_s`: what the worker's levels are worth when they come."""
    return chance * run_s - soon_s + (1 - chance) * max(run_s - max(late_s - soon_s, 0.0), 0.0)


def break_even(soon_s: float, late_s: float, run_s: float) -> float:
    """The chance at which `wait_value` is zero: 0 if waiting pays at every chance, 1 if it pays at none."""
    later_s = max(run_s - max(late_s - soon_s, 0.0), 0.0)
    if run_s <= later_s:
        return 0.0 if run_s > soon_s else 1.0
    return min(max((soon_s - later_s) / (run_s - later_s), 0.0), 1.0)


def reading_pays(saved_s: float, uses: float, backlog_s: float) -> bool:
    """Whether reading the backlog pays over the tokens still to come: this run's saving, and those of later ones."""
    return saved_s * (1 + uses) > backlog_s


def tree_s(costs: Costs, shares: Sequence[float], limit: int) -> float:
    """Seconds per token of the gateway alone, with trees of the best depth and the best number of leaves: a step finds
    below each leaf `shares` of its probability, best first, and a pass takes the likeliest `limit` candidates. Where
    others share the passes, all do the same."""
    all_of, best = 1 + costs.sharers, costs.verify_s(1 + costs.sharers)
    for width in sorted({leaves for leaves, _ in costs.local_points} or {costs.local_leaves}):
        step_s, ends, found, drafted_s, before_s = all_of * costs.draft_s(width), [1.0], list[float](), 0.0, inf
        for _ in range(MAX_RUN):
            drafted_s += step_s
            ends = sorted([mass * share for mass in ends[:width] for share in shares], reverse=True)
            found = sorted([*found, *ends], reverse=True)[:limit]
            now_s = min(
                (drafted_s + costs.verify_s(all_of * (1 + count))) / (1 + sum(found[:count]))
                for count in range(1 if costs.sharers else len(found), len(found) + 1)
            )
            if now_s >= before_s:
                break
            before_s = now_s
        best = min(best, before_s)
    return best


_cost = attrgetter("cost")


class Outlook:
    """The likely part of a tree: `nodes` come so that every head is closed under parents."""

    __slots__ = ("best", "leaves", "nodes", "root", "shares", "survival")

    def __init__(
        self, root: Node, nodes: Sequence[Node], survival: Sequence[float], shares: Sequence[float],
        best: Sequence[tuple[float, int, Node]],
    ) -> None:  # fmt: skip
        self.root, self.nodes, self.survival = root, nodes, survival
        self.shares = shares
        """Probability of a node's children, best first: what a draft step is expected to find at each leaf."""
        self.best = best
        """Where a step adds most, best first: (probability that the target's path leaves the tree there, -id, node)."""
        self.leaves = [leaf for _, _, leaf in best]

    def found(self, leaves: int) -> list[float]:
        """Survival of what one more draft step over the best of `leaves` is expected to find."""
        return [mass * share for mass, _, _ in self.best[:leaves] for share in self.shares]

    def undrafted(self) -> tuple[Node, Sequence[float]]:
        """The first node of the likeliest path of which no draft has proposed a child, and survival: its own, and that
        of the likeliest path below it, level by level, which sources without a model propose. None of the latter if
        it has no children."""
        survival = dict(zip(self.nodes, self.survival))
        node, chance, first, found = self.root, 1.0, None, list[float]()
        while True:
            if first is None and not any(child.drafted for child in node.children.values()):
                first = node
            if first is not None:
                found.append(chance)
            likely = [(survival[child], child) for child in node.children.values() if child in survival]
            if not likely:
                return first or node, found or [chance]
            chance, node = max(likely, key=itemgetter(0))


class Surveyor:
    """Looks at one request's tree, and learns from what the target chose what candidates are worth."""

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.tuning, rest = tuning, (tuning.named - tuning.match) / 2
        self._best, self._judged = tuning.match * tuning.prior, tuning.prior
        """Prefixes whose next token was a draft's best one, and all that were judged."""
        self._shares = [share * tuning.prior for share in (tuning.match, rest, rest / 2, rest / 2)]
        self._full = tuning.prior
        """Sums of the probabilities of children by rank, and the nodes over which they are sums."""
        self._right = self._expected = tuning.trust
        """Candidates that were the target's, and how many were expected to be."""
        self._offered: dict[Node, Mapping[int, Node]] = {}
        """The last look's root and likely nodes, with the children that they had then."""
        self._root: Node | None = None
        self.calibrator = Calibrator()
        self._drafted: dict[Node, Proposal] = {}
        """What the local draft has proposed below nodes of the tree."""
        self._shared = False
        """Whether sources without a model have proposed anything."""

    @property
    def shares(self) -> list[float]:
        """Mean probability of a likely node's children, best first."""
        return [share / self._full for share in self._shares]

    @property
    def match(self) -> float:
        """How often the draft's best token was the target's."""
        return self._best / self._judged

    def judged(self, *, hit: bool) -> None:
        """The draft's children after a committed prefix were seen to hold the token that followed, or not. Which child
        held it is not known: each rank counts by its share."""
        self._judged += 1
        self._full += 1
        if hit:
            named = sum(self._shares)
            self._best += self._shares[0] / named
            self._shares = [share + share / named for share in self._shares]

    def priced(self, leaves: Sequence[Node], proposals: Sequence[Proposal]) -> list[Proposal]:
        """The local draft's proposals at calibrated costs, as workers send them."""
        self._drafted |= zip(leaves, proposals)
        return [replace(one, costs=self._calibrated(one)) for one in proposals]

    def _calibrated(self, one: Proposal) -> list[float]:
        return [self.calibrator.cost(cost, one.entropy, rank) for rank, cost in enumerate(one.costs)]

    def state(self) -> list[float]:
        """What was learnt of the draft, as plain numbers: sums over observations."""
        scale = min(1.0, self.tuning.carried / max(self._judged, self._full))
        trust = min(1.0, self.tuning.carried / self._expected)
        counts = (self._best, self._judged, *self._shares, self._full)
        return [*(count * scale for count in counts), self._right * trust, self._expected * trust]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._best, self._judged, *self._shares, self._full, self._right, self._expected = state

    def look(
        self, tree: CandidateTree, sequences: int, width: int, deepest: float = inf, most: int = 1 << 30
    ) -> Outlook:
        """The tree as it is, down to position `deepest`, where the completion will end, and its `most` likely nodes.

        A local step takes up to `sequences` leaves and names `width` children of each."""
        root, nodes = tree.root, tree.tree.nodes.values()
        shared = self._shared = self._shared or root.revision > 0
        gains = _gains(nodes) if shared else {}
        likely = sorted(nodes, key=(lambda node: node.cost - gains[node]) if shared else _cost)[: most + sequences]
        if likely and deepest - root.position < len(likely):
            likely = [node for node in likely if node.position <= deepest]
        doubt, base, place = min(log(self._right / self._expected), 0.0), root.cost, root.position
        left: dict[Node | None, float] = {root: 1.0}
        """Probability that the target's path comes to a node and leaves the tree there."""
        survival = list[float]()
        for node in likely:
            chance = exp(base - node.cost + doubt * (node.position - place) + (gains[node] if shared else 0.0))
            survival.append(chance)
            left[node] = chance
            left[node.parent] -= chance
        self._root, self._offered = root, {}
        best = list[tuple[float, int, Node]]()
        for node, chance, mass in zip([root, *likely], [1.0, *survival], left.values()):
            if node.children:
                children = self._offered[node] = node.children.copy()
                named = sum(child.drafted for child in children.values()) if shared else len(children)
                if named >= width or mass <= self.tuning.least_open * chance:
                    continue
            if node.position < deepest:
                best.append((mass, -node.id, node))
        best.sort(reverse=True)
        return Outlook(root, likely[:most], survival[:most], self.shares, best[:sequences])

    def learn(self, tree: CandidateTree, width: int) -> None:
        """A round ended: counts which of the candidates that it decided on were the target's."""
        node, root = self._root, tree.root
        if node is None:
            return
        trust, offered = min(self._right / self._expected, 1.0), self._offered
        drafts = offered
        if self._shared:
            drafts = {one: {t: child for t, child in those.items() if child.drafted} for one, those in offered.items()}
        for token in tree.prefix.tokens[node.position + 1 : root.position + 1]:
            following = offered.get(node, {}).get(token)
            if (own := self._drafted.get(node)) is not None:
                chosen = own.tokens.index(token) if token in own.tokens else None
                self.calibrator.observe(own.costs, own.entropy, chosen)
            drafted = sorted(drafts.get(node, {}).values(), key=_cost)
            if drafted:  # what a draft proposed after a committed prefix, and the token that followed
                self._judged += 1
                self._best += drafted[0].token == token
                self._expected += sum([exp(node.cost - child.cost) for child in drafted])
                self._right += following in drafted
            if following is None:
                break
            node = following
        shares = self._shares
        for node, children in drafts.items():
            if len(children) >= width:
                self._full += 1
                for rank, cost in enumerate(sorted(map(_cost, children.values()))[: len(shares)]):
                    shares[rank] += trust * exp(node.cost - cost)
        self._offered, self._root = {}, None
        self._drafted = {node: own for node, own in self._drafted.items() if node in tree.tree}


def _gains(nodes: Iterable[Node]) -> Mapping[Node, float]:
    """Nats by which a path is likelier than its draft says, since sources without a model propose its nodes as well: as
    if each were right or wrong independently of the others. Parents come before their children."""
    gains: dict[Node, float] = {}
    for node in nodes:
        assert node.parent is not None
        wrong, own = 1.0, max(exp(min(node.parent.cost - node.cost, 0.0)), 1e-30)
        for chance in (node.evidence or {}).values():
            wrong *= 1 - chance
        combined = max(1 - wrong * (1 - own) if node.drafted else 1 - wrong, own)  # 1 - (1 - 1e-30) is 0
        gains[node] = gains.get(node.parent, 0.0) + log(combined / own)
    return gains
