"""Trials of the shared noise: all trials take one step of the answer together, by the core's own processing and noise.

`steps` is the vectorised twin of the gateway's loop (verify, walk, commit), and `replay` is that loop itself; both give
the same tokens for the same seeds and trees, which every case checks on its first trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree, walk
from cloud_gateway.core.verify.shared_noise import Chooser
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.gumbel import gumbel
from edgespec.core.sampling.logits import History, Processor
from tools.lossless.scene import ROOT, Path, PathRows, Scene

Seeds = NDArray[np.uint64]
Tokens = NDArray[np.int64]

DEPTH = 2
"""Levels of candidates in a tree, so that a walk may pass a whole path and end at a leaf."""
FAVOURITE = 2
"""The token that the adversarial drafter wants to see more often: it helps only where the answer has it."""

Drafter = Callable[[Scene, Sampling, Seeds, Path, int, np.random.Generator], Tokens]
"""(scene, rule, seeds, path, width, rng) -> siblings after the path, one row per seed; shape [seeds, width]."""


def honest(scene: Scene, rule: Sampling, seeds: Seeds, path: Path, width: int, rng: np.random.Generator) -> Tokens:
    """The draft model's candidates under the request's own parameters and noise: what a worker sends."""
    return _noisy_order(scene, scene.draft_logits(path), rule, seeds, path)[:, :width]


def random(scene: Scene, rule: Sampling, seeds: Seeds, path: Path, width: int, rng: np.random.Generator) -> Tokens:
    rows = np.broadcast_to(scene.tokens, (len(seeds), len(scene.tokens)))
    return rng.permuted(rows, axis=1)[:, :width]


def adversarial(scene: Scene, rule: Sampling, seeds: Seeds, path: Path, width: int, rng: np.random.Generator) -> Tokens:
    """Knows target, seed and noise. Helps only towards its favourite token; else sends the runners-up."""
    order = _noisy_order(scene, scene.logits(path), rule, seeds, path)
    favourite = scene.tokens[FAVOURITE]
    shifted = np.roll(order, -1, axis=1)
    return np.where(order[:, :1] == favourite, order, shifted)[:, :width]


DRAFTERS: dict[str, Drafter] = {"honest": honest, "random": random, "adversarial": adversarial}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`tokens`: the answers, [trials, length]. `siblings`: candidates offered along them, [trials, length, width].

    `hits`: how many tokens were among the candidates of their round.
    """

    tokens: Tokens
    siblings: Tokens
    hits: int


def steps(
    scene: Scene,
    rule: Sampling,
    seeds: Seeds,
    drafter: Drafter,
    width: int,
    rng: np.random.Generator,
    make: type[Chooser] = Chooser,
) -> Outcome:
    """All trials at once. `make` is the seam for planted faults: a `Chooser` with one method replaced."""
    trials = len(seeds)
    tokens = np.zeros((trials, scene.length), np.int64)
    siblings = np.zeros((trials, scene.length, width), np.int64)
    committed = np.zeros(trials, np.int64)
    hits = 0
    for depth in range(scene.length):
        for path, members in by_path(tokens[:, :depth]):
            siblings[members, depth] = drafter(scene, rule, seeds[members], path, width, rng)
            for base in range(depth + 1):
                here = members[committed[members] == base]
                if len(here):
                    tokens[here, depth] = _chosen(make, scene, rule, seeds[here], path, base)
        in_tree = depth - committed < DEPTH
        matched = in_tree & (siblings[:, depth] == tokens[:, depth, None]).any(axis=1)
        hits += int(matched.sum())
        committed = np.where(matched, committed, depth + 1)

    return Outcome(tokens, siblings, hits)


def replay(scene: Scene, rule: Sampling, seed: int, siblings: Tokens) -> list[int]:
    """One answer by the gateway's own loop: trees, `Chooser`, `walk`, commits. `siblings`: of one trial of `steps`."""
    chooser = Chooser(replace(rule, seed=seed), scene.prompt)
    answer: list[int] = []
    while len(answer) < scene.length:
        flat = _tree(siblings[len(answer) : len(answer) + DEPTH])
        taken = walk(flat, chooser.at(flat, PathRows(scene, tuple(answer), flat)), limit=scene.length - len(answer))
        chooser.committed(taken.tokens)
        answer += taken.tokens

    return answer


def _chosen(make: type[Chooser], scene: Scene, rule: Sampling, seeds: Seeds, path: Path, base: int) -> Tokens:
    """The target's tokens after `path`, of which `base` tokens are committed and the rest is a path of the tree."""
    chooser = make(replace(rule, seed=0), scene.prompt)
    chooser.committed(path[:base])
    found = chooser.candidates(PathRows(scene, path, ROOT), 0, path[base:])
    tokens = np.arange(len(found.logits)) if found.tokens is None else found.tokens
    noise = gumbel(seeds[:, None], chooser.position(path[base:]), tokens)
    return tokens[np.argmax(found.logits + noise, axis=1)]


def _noisy_order(scene: Scene, logits: NDArray[np.float32], rule: Sampling, seeds: Seeds, path: Path) -> Tokens:
    processed = Processor(rule).candidates(logits, History(scene.prompt, path)).dense(len(logits))[scene.tokens]
    noise = gumbel(seeds[:, None], len(scene.prompt) + len(path), scene.tokens)
    return scene.tokens[np.argsort(-(processed + noise), axis=1, kind="stable")]


def by_path(tokens: Tokens) -> Iterator[tuple[Path, NDArray[np.int64]]]:
    """The distinct rows, each with the trials that have it."""
    if tokens.shape[1] == 0:
        yield (), np.arange(len(tokens))
        return

    paths, which = np.unique(tokens, axis=0, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    for path, members in zip(paths, np.split(order, np.cumsum(np.bincount(which.ravel()))[:-1]), strict=True):
        yield tuple(path.tolist()), members


def _tree(levels: Tokens) -> FlatTree:
    """The first level below the root; the second below each node of the first."""
    tokens = [-1]
    parents = [-1]
    depths = [0]
    first = levels[0].tolist()
    tokens += first
    parents += [0] * len(first)
    depths += [1] * len(first)
    for parent in range(1, len(first) + 1):
        for token in levels[1].tolist() if len(levels) > 1 else ():
            tokens.append(token)
            parents.append(parent)
            depths.append(2)

    return FlatTree(tokens, parents, depths)
