"""The first tokens of the real target's answer, in fp32: trials take its logits from tree passes, the exact
distribution from plain decoding, one token a pass."""

from __future__ import annotations

from pathlib import Path as File

import numpy as np

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Target, Work
from tools.lossless import exact
from tools.lossless.cases import WIDTHS, Case
from tools.lossless.methods import METHODS
from tools.lossless.scene import RULES, Logits, Path, Scene

QUESTION = "Name three animals that live in the sea, and say in one sentence what each of them eats."
LENGTH = 2
DRAFT_ERROR = 0.7
"""Standard deviation (logits) of the error that stands in for a draft model here."""


def jobs(model: File | None) -> list[tuple[Case, Scene]]:
    """Cases over the real target: every width once for each method. Raises ModelError where the model is missing."""
    from cloud_gateway.models.text import Text
    from cloud_gateway.parts import all_parts
    from cloud_gateway.process.config import schema
    from cloud_gateway.process.targets import check_models, load_target
    from edgespec.shared import models
    from edgespec.shared.settings import overridden

    values: dict[str, object] = {
        "model": str(model or models.quantised()),
        "engine": "torch",
        "dtype": "float32",
        "device": "cpu",
    }
    values |= {"slots": 2, "context": 512, "threads": 1}
    target_keys = {f"target.{key}": value for key, value in values.items()}
    settings = overridden(schema(all_parts())(), {**target_keys, "local_draft.model": ""})
    loaded = load_target(settings, check_models(settings))
    target = loaded.target
    prompt = Text(loaded.vocabulary.tokenizer).render_chat([{"role": "user", "content": QUESTION}])
    rules = [name for name in RULES if name.startswith("real")]
    plain = {name: _plain(target, prompt, name) for name in rules}
    found: list[tuple[Case, Scene]] = []
    for width in WIDTHS:
        name = rules[width % len(rules)]
        first = sorted({answer[0] for answer in plain[name].answers[repr(RULES[name])]})
        scene = _through_trees(target, plain[name], first, width)
        found += [(method.at_real_target(width, name), scene) for method in METHODS]

    return found


def _plain(target: Target, prompt: list[int], rule: str) -> Scene:
    """The scene by plain decoding, closed over the tokens that its rule leaves."""

    def logits(path: Path) -> Logits:
        tokens = [*prompt, *path]
        return _verified(target, tokens, FlatTree([tokens[-1]], [-1], [0]))[0]

    def draft(path: Path) -> Logits:
        error = np.random.default_rng([9, *path]).normal(size=target.vocab_size)
        return (scene.logits(path) + DRAFT_ERROR * error).astype(np.float32)

    scene = Scene(prompt, LENGTH, logits, draft, np.arange(target.vocab_size))
    scene.answers[repr(RULES[rule])] = exact.sequences(scene, RULES[rule])
    possible = {token for answer in scene.answers[repr(RULES[rule])] for token in answer}
    likely = {int(token) for token in np.argsort(-scene.logits(()))[:16]}
    scene.tokens = np.array(sorted(possible | likely))
    return scene


def _through_trees(target: Target, plain: Scene, first: list[int], width: int) -> Scene:
    """The same scene with logits from verify passes over trees of `width` siblings out of `first`."""
    prompt = list(plain.prompt)
    known = dict[Path, Logits]()
    for start in range(0, len(first), width):
        siblings = first[start : start + width]
        flat = FlatTree([prompt[-1], *siblings], [-1] + [0] * len(siblings), [0] + [1] * len(siblings))
        rows = _verified(target, prompt, flat)
        known[()] = rows[0]
        known.update({(token,): row for token, row in zip(siblings, rows[1:], strict=True)})

    return Scene(prompt, LENGTH, known.__getitem__, plain.draft, plain.tokens, plain, replayed=128)


def _verified(target: Target, tokens: list[int], flat: FlatTree) -> list[Logits]:
    """Logits after every row of one pass; row 0 is the last of `tokens`."""
    slot, reused = target.open(tokens)
    target.prefill(slot, tokens[reused:-1])
    result = target.verify([Work(slot, flat)])[0]
    rows = [result.logits(row).copy() for row in range(len(flat))]
    target.keep(slot, [0])
    target.close(slot)
    return rows
