"""Trials of classic rejection sampling, by the core's own draws and tests, all trials at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.sources.interface import ROOT as NO_PARENT
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.core.sources.lookup import Lookup
from cloud_gateway.core.verify.accept import FlatTree, walk
from cloud_gateway.parts.rejection.sampling import Rejection, RejectionChooser, probabilities
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.logits import History, Processor
from tools.lossless.scene import Path, PathRows, Scene
from tools.lossless.shared_noise import DEPTH, Tokens, by_path

Floats = NDArray[np.float64]

Draft = Callable[[Floats, Floats], Floats]
"""(p, the draft model's distribution) -> the q that is drawn from; each [tokens]."""


def honest(p: Floats, q: Floats) -> Floats:
    """The draft model's own distribution."""
    return q


def random(p: Floats, q: Floats) -> Floats:
    """A distribution that has nothing to do with the target's, but is the same each time."""
    weights: Floats = np.random.default_rng(int(p[0] * 1e9)).random(len(p)) ** 3
    return weights / weights.sum()


def adversarial(p: Floats, q: Floats) -> Floats:
    """Prefers what the target avoids, and never draws its best token."""
    weights = 1 / (p + 0.01)
    weights[np.argmax(p)] = 0
    return weights / weights.sum()


DRAFTERS: dict[str, Draft] = {"honest": honest, "random": random, "adversarial": adversarial}


def steps(
    scene: Scene, rule: Sampling, rejection: Rejection, draft: Draft, trials: int, width: int
) -> tuple[Tokens, int]:
    """Answers of all trials, shape [trials, length], and how many tokens were accepted siblings.

    `rejection` is the seam for planted faults. A round's tree has DEPTH levels; the token after them is sampled.
    """
    tokens = np.zeros((trials, scene.length), np.int64)
    committed = np.zeros(trials, np.int64)
    hits = 0
    for depth in range(scene.length):
        p = np.empty((trials, len(scene.tokens)))
        q = np.empty((trials, len(scene.tokens)))
        for path, members in by_path(tokens[:, :depth]):
            p[members] = target = _distribution(scene, scene.logits(path), rule, path)
            q[members] = draft(target, _distribution(scene, scene.draft_logits(path), rule, path))
        drafted = depth - committed < DEPTH
        here = np.flatnonzero(drafted)
        bonus = np.flatnonzero(~drafted)
        local = rejection.draw(q[here], width)
        chosen = rejection.token(p[here], local)
        matched = (local.siblings == chosen[:, None]).any(axis=1)
        hits += int(matched.sum())
        tokens[here, depth] = scene.tokens[chosen]
        tokens[bonus, depth] = scene.tokens[rejection.sample(p[bonus])]
        committed[here[~matched]] = depth + 1
        committed[bonus] = depth + 1

    return tokens, hits


def lookup(scene: Scene, committed: Path) -> Sequence[Suggestion]:
    """What the source `lookup` suggests after a prompt that begins with every short sequence of the scene's tokens."""
    before = np.random.default_rng(1).choice(scene.tokens, 192).tolist()
    source = Lookup(len(before))
    source.committed([*before, *scene.prompt, *committed])
    return source.propose(8)


def texts(scene: Scene, committed: Path) -> Sequence[Suggestion]:
    """What a source suggests that has eight random completions of the prompt."""
    rng = np.random.default_rng(2)
    before: list[int] = []
    for _ in range(8):
        before += [*scene.prompt, *rng.choice(scene.tokens, scene.length).tolist()]

    source = Lookup(len(before))
    source.committed([*before, *scene.prompt, *committed])
    return source.propose(8)


SOURCES: dict[str, Callable[[Scene, Path], Sequence[Suggestion]]] = {"lookup": lookup, "texts": texts}


def replay(
    scene: Scene,
    rule: Sampling,
    width: int,
    rng: np.random.Generator,
    suggest: Callable[[Scene, Path], Sequence[Suggestion]] = lambda scene, committed: (),
) -> list[int]:
    """One answer by the gateway's own loop: drawn trees, `RejectionChooser`, `walk` and commits.

    `suggest`: candidates that no draft drew; they are matched against the target's choice, and never tested.
    """
    chooser = RejectionChooser(rule, scene.prompt, rng)
    answer: list[int] = []
    while len(answer) < scene.length:
        drawn = _drawn_tree(scene, chooser, tuple(answer), width)
        flat = _together(drawn, suggest(scene, tuple(answer)))
        rows = PathRows(scene, tuple(answer), flat)
        taken = walk(flat, chooser.at(flat, rows), limit=scene.length - len(answer))
        chooser.committed(taken.tokens)
        answer += taken.tokens

    return answer


def _drawn_tree(scene: Scene, chooser: RejectionChooser, committed: Path, width: int) -> FlatTree:
    tokens = [-1]
    parents = [-1]
    depths = [0]
    paths: list[Path] = [()]
    row = 0
    while row < len(tokens) and depths[row] < DEPTH:
        for token in chooser.rank(scene.draft_logits((*committed, *paths[row])), paths[row], width).tokens:
            tokens.append(token)
            parents.append(row)
            depths.append(depths[row] + 1)
            paths.append((*paths[row], token))
        row += 1

    return FlatTree(tokens, parents, depths)


def _together(drawn: FlatTree, suggestions: Sequence[Suggestion]) -> FlatTree:
    """The tree with the suggestions in it; one that was drawn too is the same row."""
    tokens = list(drawn.tokens)
    parents = list(drawn.parents)
    depths = list(drawn.depths)
    row_of = {(parent, token): row for row, (parent, token) in enumerate(zip(parents, tokens))}
    rows: list[int] = []
    for one in suggestions:
        parent = 0 if one.parent == NO_PARENT else rows[one.parent]
        row = row_of.setdefault((parent, one.token), len(tokens))
        if row == len(tokens):
            tokens.append(one.token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
        rows.append(row)

    return FlatTree(tokens, parents, depths)


def _distribution(scene: Scene, logits: NDArray[np.float32], rule: Sampling, path: Path) -> Floats:
    found = Processor(rule).candidates(logits, History(scene.prompt), path)
    return probabilities(found, len(logits))[scene.tokens]
