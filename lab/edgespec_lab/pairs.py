"""`python -m edgespec_lab.pairs TARGET DRAFT`: how often a draft model is right for a target, both in llama.cpp.

The rounds are in lockstep: a commit and `STEPS` draft steps. Then the target's greedy tokens are compared with the
likeliest chain of the worker's tree and with its likeliest `NODES` nodes; those in the latter and the target's next one
are committed. A draft with another tokenizer is translated, as at a worker with `draft.target`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cloud_gateway.models.target_model.load import load_vocabulary
from edgespec.core.drafting.algorithm2 import Drafting
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule, MakeDrafting
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.errors import TokenizerMismatch
from edgespec.core.protocol.messages import Sampling
from edgespec.llamacpp.drafter import Drafter
from edgespec.parts import all_parts
from edgespec.shared import models
from edgespec.shared.settings import overridden
from edgespec.shared.vocabfiles import gguf_vocabulary
from edgespec.worker import config
from edgespec.worker.models import target_tokens
from edgespec_lab import verbs
from edgespec_lab.demo.scene import PROMPTS, read_prompts
from edgespec_lab.options import number

STEPS = 6
"""Draft steps of a round."""
LEAVES = 4
TOKENS = 48
"""Of each completion."""
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


def measure(target: Path, draft: Path, texts: Sequence[str], count: int) -> Agreement:
    """`agreement` of two GGUF files on prompts in plain text.

    Raises ModelError, ConfigError, TokenizerMismatch, and DraftMemoryError.
    """
    begin = gguf_vocabulary(target).bos
    vocabulary, _ = load_vocabulary(target)
    prompts: list[list[int]] = []
    for text in texts:
        prompt = list(vocabulary.tokenizer.encode(text, add_special_tokens=False))
        if begin is not None:
            prompt.insert(0, begin)
        prompts.append(prompt)

    context = max(map(len, prompts)) * 2 + count + 64 * LEAVES
    whole, small = (Drafter(path, context=context, sequences=LEAVES, requests=1) for path in (target, draft))
    agreed = agreement(whole, small, prompts, count, drafting_for(target, draft, small))
    whole.shutdown()
    small.shutdown()
    return agreed


def drafting_for(target: Path, draft: Path, drafter: Drafter) -> MakeDrafting:
    """A worker's drafting for this target: in the draft model's tokens, or in the target's by a part of the worker.

    Raises ModelError, and TokenizerMismatch if no part drafts for another tokenizer.
    """
    digest = gguf_vocabulary(target).digest
    if digest == drafter.tokenizer_digest:
        return BestFirst

    parts = all_parts()
    if all(part.target_tokens is None for part in parts):
        raise TokenizerMismatch(f"{draft.name} has another tokenizer than {target.name}, and no part translates.")

    named = {"draft.model": str(draft), "draft.target": str(target)}
    tokens = target_tokens(parts, overridden(config.schema(parts)(), named), drafter).at_start()
    if tokens.tokenizer_digest != digest:
        raise TokenizerMismatch(f"{draft.name} has another tokenizer than {target.name}: choose another draft.")
    return tokens.make


def agreement(
    target: Drafter, draft: Drafter, prompts: Sequence[Sequence[int]], count: int, make: MakeDrafting
) -> Agreement:
    """Greedy completions of `count` tokens of these prompts, which are in the target's tokens."""
    found = Agreement()
    calibrator = Calibrator()
    spread = Spread()
    for prompt in prompts:
        completion = greedy(target, prompt, count)
        rule = BestFirstRule(sequences=LEAVES)
        drafting = make(1, 1, len(prompt), rule, calibrator=calibrator)
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
    ranker = Ranker(Sampling(), drafting.to_read, spread=spread, resolved=True)
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
    node = drafting.tree.root
    tree = drafting.tree
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
    node = tree.root
    accepted = 0
    for token in rest:
        child = node.children.get(token)
        if child is None or child.id not in kept:
            break
        node = child
        accepted = accepted + 1
    found.in_tree += accepted
    return accepted


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edgespec_lab.pairs", description=__doc__)
    parser.add_argument("target", metavar="TARGET", help="a GGUF file, or a fetched name")
    parser.add_argument("draft", metavar="DRAFT", help="the same")
    parser.add_argument("--prompts", type=number(int, 1, 100), default=10, metavar="N", help="of the demo")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=show)
    return verbs.run(parser, arguments)


def show(options: argparse.Namespace) -> int:
    """Measures one pair and prints the result. Raises ModelError, ConfigError, TokenizerMismatch."""
    target = models.resolve_model(options.target)
    draft = models.resolve_model(options.draft)
    agreed = measure(target, draft, read_prompts(PROMPTS, options.prompts, 1), TOKENS)
    accepted = agreed.in_tree / max(agreed.rounds, 1)
    host_ms = agreed.host_s / agreed.tokens * 1e3

    if options.json:
        facts = {"tokens": agreed.tokens, "right": agreed.right, "accepted": accepted, "host_ms": host_ms}
        print(json.dumps(facts | {"by_level": agreed.by_position}))
        return 0

    print(
        f"Over {agreed.tokens} greedy tokens: a draft token is right {agreed.right:.2f} of the time, and "
        f"{accepted:.1f} of a tree of {NODES} are accepted after six draft steps."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
