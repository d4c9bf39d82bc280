"""How often a draft model is right for a target: rounds in lockstep, both models in llama.cpp.

A round is a commit and `STEPS` draft steps. Then the target's greedy tokens are compared with the likeliest chain of
the worker's tree and with its likeliest `NODES` nodes; those in the latter and the target's next one are committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.core.drafting.algorithm2 import Drafting
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.drafting.translation import TranslatedDrafting, Translator
from edgespec.core.protocol.messages import Sampling
from edgespec.lab.demo.scene import PROMPTS, read_prompts
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.tokenizer import GgufTokenizer
from edgespec.shared.vocabfiles import gguf_vocabulary

STEPS = 6
"""Draft steps of a round."""
LEAVES = 4
NODES = 16
"""Nodes of the tree that a target pass would verify: the gateway's default is of this size."""


@dataclass(slots=True)
class Agreement:
    """Counts over all rounds."""

    tokens: int = 0
    rounds: int = 0
    by_position: list[list[int]] = field(default_factory=list)
    """Along the likeliest chain, for each level that was reached: tokens that were right, and tokens."""
    in_tree: int = 0
    """Tokens accepted among the likeliest `NODES` nodes."""
    host_s: float = 0.0
    """Processor time of drafting without the models' passes."""

    @contextmanager
    def host(self) -> Iterator[None]:
        """Adds the processor time of what is done in it to `host_s`."""
        began = time.thread_time()
        yield
        self.host_s += time.thread_time() - began

    @property
    def right(self) -> float:
        """How often a token of the likeliest chain is the target's, as long as those before it are."""
        return sum(one[0] for one in self.by_position) / max(sum(one[1] for one in self.by_position), 1)


def together(
    target: Path, draft: Path, translator: Translator | None, prompts: int | None, tokens: int
) -> dict[str, Any]:
    """How the draft drafts for the target, and how well on so many prompts."""
    facts: dict[str, Any] = {"method": f"one tokenizer of {tokens} tokens"}
    if translator is not None:
        written, same = expressed(translator)
        facts["method"] = (
            f"translated, as a worker's draft with `draft.target`; the draft writes {written:.1%} of the target's "
            f"{tokens} tokens, {same:.1%} as one of its own"
        )
    if prompts is not None:
        found = measure(target, draft, read_prompts(PROMPTS, prompts, 1), 48, translator)
        accepted = found.in_tree / max(found.rounds, 1)
        facts["measured"] = {"tokens": found.tokens, "right": found.right, "accepted": accepted}
        facts["measured"] |= {"by_level": found.by_position, "host_ms": found.host_s / found.tokens * 1e3}
    return facts


def measure(target: Path, draft: Path, texts: Sequence[str], count: int, translator: Translator | None) -> Agreement:
    """`agreement` of two GGUF files on prompts in plain text. Raises ModelError, ConfigError, and DraftMemoryError."""
    begin, tokenizer = gguf_vocabulary(target).bos, translator.target if translator else GgufTokenizer(target)
    prompts = [([] if begin is None else [begin]) + list(tokenizer.encode(text.encode())) for text in texts]
    context = max(map(len, prompts)) * 2 + count + 64 * LEAVES
    whole, small = (Drafter(path, context=context, sequences=LEAVES, requests=1) for path in (target, draft))
    found = agreement(whole, small, prompts, count, translator)
    whole.shutdown()
    small.shutdown()
    return found


def expressed(pair: Translator) -> tuple[float, float]:
    """Shares of the target's vocabulary: what the draft can write, and what is one of its tokens."""
    known = {piece for piece in pair.draft.pieces if piece}
    entries = [piece for piece in pair.target.pieces if piece]
    same = sum(piece in known for piece in entries) + len(pair.marks)
    written = sum(piece not in known and all(bytes((byte,)) in known for byte in piece) for piece in entries)
    return (same + written) / len(pair.target.pieces), same / len(pair.target.pieces)


def agreement(
    target: Drafter, draft: Drafter, prompts: Sequence[Sequence[int]], count: int, translator: Translator | None
) -> Agreement:
    """Greedy completions of `count` tokens of these prompts, which are in the target's tokens."""
    found, calibrator, spread = Agreement(), Calibrator(), Spread()
    for prompt in prompts:
        completion = greedy(target, prompt, count)
        rule = BestFirstRule(sequences=LEAVES)
        drafting: Drafting
        if translator is None:
            drafting = BestFirst(1, 1, len(prompt), rule, calibrator=calibrator)
        else:
            drafting = TranslatedDrafting(1, 1, len(prompt), translator, rule, calibrator=calibrator)
        _rounds(found, drafting, draft, spread, prompt, completion)
        draft.close(1, keep=False)
    return found


def greedy(target: Drafter, prompt: Sequence[int], count: int) -> list[int]:
    """The target's likeliest tokens, one after the other."""
    tokens = list[int]()
    target.open(0, prompt)
    while target.catch_up(0, target.prefill_batch):
        pass
    while len(tokens) < count:
        tokens += target.step(0, [()], 1)[0].tokens
        target.commit(0, tokens[-1:])
    target.close(0, keep=False)
    return tokens


def _rounds(
    found: Agreement, drafting: Drafting, draft: Drafter, spread: Spread, prompt: Sequence[int], completion: list[int]
) -> None:
    at = 0
    drafting.commit(0, prompt, chosen=False)
    draft.open(1, drafting.to_read)
    ranker = Ranker(drafting.ranked_by(Sampling()), drafting.to_read, spread=spread, resolved=True)
    while draft.catch_up(1, draft.prefill_batch):
        pass
    while at < len(completion):
        for _ in range(STEPS):
            with found.host():
                leaves = drafting.candidates()
                paths = drafting.paths(leaves)
            if not leaves:
                break
            proposals = draft.step(1, paths, drafting.rule.branching, ranker)
            with found.host():
                drafting.record(leaves, proposals)
        accepted = _compare(found, drafting, completion[at:])
        fresh = completion[at : at + accepted + 1]
        with found.host():
            drafting.commit(len(prompt) + at, fresh)
        draft.commit(1, drafting.to_read)
        ranker.committed(drafting.to_read)
        at += len(fresh)
        found.tokens += len(fresh)
        found.rounds += 1


def _compare(found: Agreement, drafting: Drafting, rest: Sequence[int]) -> int:
    """Counts how far the tree agrees with the target's next tokens; returns how many would be accepted."""
    node, tree = drafting.tree.root, drafting.tree
    for level, token in enumerate(rest):
        if not node.children:
            break
        best = min(node.children.values(), key=lambda child: child.cost)
        if level == len(found.by_position):
            found.by_position.append([0, 0])
        found.by_position[level][1] += 1
        if best.token != token:
            break
        found.by_position[level][0] += 1
        node = best
    kept = {node.id for node in sorted(tree.nodes.values(), key=lambda node: (node.cost, node.position))[:NODES]}
    node, accepted = tree.root, 0
    for token in rest:
        child = node.children.get(token)
        if child is None or child.id not in kept:
            break
        node, accepted = child, accepted + 1
    found.in_tree += accepted
    return accepted
