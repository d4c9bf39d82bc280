"""`cloud-gateway models`: the verbs of `edgespec models`, and whether a target and a draft pair.

`check` reads headers and tokenizers, applies the checks of a gateway's start, and tries llama.cpp with both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud_gateway.process import config
from edgespec.core.errors import EdgespecError
from edgespec.parts.model_files import command, verbs
from edgespec.shared import models
from edgespec.shared.folders import config_file
from edgespec.shared.part import require_trials
from edgespec.shared.procstat import available_memory
from edgespec.shared.settings import assigned, overridden

if TYPE_CHECKING:
    from cloud_gateway.part import GatewayPart
    from cloud_gateway.process.config import GatewaySettings


class GatewayModelsVerb:
    """`cloud-gateway models`."""

    def add(self, parsers: verbs.Verbs[argparse.ArgumentParser]) -> None:
        """Adds the verb to the command line of the gateway."""
        text = "list models, say whether two pair, fetch them, and make drafts of them"
        parser = parsers.add_parser("models", help=text, description=(__doc__ or "").partition("\n")[0])
        add_models(parser)


def add_models(parser: argparse.ArgumentParser) -> None:
    """Adds the verbs of `cloud-gateway models`."""
    actions = verbs.add_model_verbs(parser, _configured)
    check = actions.add_parser("check", help="say whether a draft can draft for a target, and try llama.cpp with both")
    check.add_argument("target", metavar="TARGET", help="a GGUF file, a folder with safetensors, or a fetched name")
    check.add_argument("draft", metavar="DRAFT", nargs="?", help="a GGUF file; left out: only try llama.cpp")
    check.add_argument("--config", type=Path, metavar="PATH", help="gateway.toml, for engine, slots and context")
    check.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of it")
    check.set_defaults(run=check_pair)
    verbs.finish_parser(check)


def _configured(options: argparse.Namespace) -> Mapping[str, str]:
    """The models of gateway.toml, if there is one."""
    if not config_file("gateway").exists():
        return {}

    settings = config.load(None, options.parts)
    named = {"target.model": settings.target.model}
    no_files = {model for part in options.parts for model in part.drafts}
    if settings.local_draft.model and settings.local_draft.model not in no_files:
        named["local_draft.model"] = settings.local_draft.model

    return named


def check_pair(options: argparse.Namespace) -> int:
    """Prints what both are, or raises the error with which a gateway would refuse them."""
    settings = assigned(config.load(options.config, options.parts), options.set)
    if options.draft is None:
        return command.try_model(options.parts, options.target, settings.target.n_gpu_layers, options.json)

    try:
        facts = _facts(settings, options.target, options.draft)
    except EdgespecError as error:
        if not options.json:
            raise
        print(json.dumps({"pairs": False, "reason": str(error)}))
        return error.exit_code

    if options.json:
        print(json.dumps({"pairs": True, **facts}))
        return 0

    target = facts["target"]
    draft = facts["draft"]
    print(
        f"target  {target['name']}: family {target['family']}, engine {facts['engine']}, "
        f"{target['weights_mb']:.0f} MB of weights, {target['slot_mb']:.0f} MB for each of {facts['slots']} slots"
    )
    print(f"draft   {draft['name']}: family {draft['family']}, {draft['weights_mb']:.0f} MB")
    print(f"They pair: {facts['method']}; {facts['available_mb']:.0f} MB are available.")
    return 0


def _facts(settings: GatewaySettings, target_name: str, draft_name: str) -> dict[str, Any]:
    """Facts about both models, as a gateway's start checks them. Raises the errors of that start."""
    from cloud_gateway.models.headers import family_of
    from cloud_gateway.process.targets import check_models, engines_of, need_of
    from edgespec.shared.vocabfiles import is_gguf

    settings = overridden(settings, {"target.model": target_name, "local_draft.model": draft_name})
    target = models.resolve_model(target_name)
    draft = models.resolve_model(draft_name)

    method = None
    if is_gguf(target) and is_gguf(draft):
        method = _other_tokenizers(settings.parts, target, draft)
    if method is not None:
        # The pair is a worker's: the checks of a local draft do not hold for it.
        settings = overridden(settings, {"local_draft.model": ""})

    plan = check_models(settings)
    require_trials(settings.parts, draft, settings.local_draft.n_gpu_layers, again=True)
    if plan.engine == config.LLAMACPP:
        require_trials(settings.parts, target, settings.target.n_gpu_layers, again=True)

    engine = engines_of(settings.parts)[plan.engine]
    entries = engine.vocabulary(target)
    need = need_of(settings, engine, target)
    return {
        "method": method or f"one tokenizer of {len(entries.entries)} tokens",
        "engine": plan.engine,
        "slots": settings.target.slots,
        "tokens": len(entries.entries),
        "tokenizer": entries.digest.hex(),
        "available_mb": available_memory() / 1e6,
        "target": {
            "name": target.name,
            "family": family_of(target),
            "weights_mb": need.weights / 1e6,
            "slot_mb": need.token * settings.target.context / 1e6,
        },
        "draft": {"name": draft.name, "family": family_of(draft), "weights_mb": draft.stat().st_size / 1e6},
    }


def _other_tokenizers(parts: Sequence[GatewayPart], target: Path, draft: Path) -> str | None:
    """How a draft with another tokenizer writes for a target; None if they have one, or if no part pairs them."""
    from edgespec.shared.vocabfiles import gguf_vocabulary

    if gguf_vocabulary(target).digest == gguf_vocabulary(draft).digest:
        return None

    for part in parts:
        if part.other_tokenizers is not None:
            return part.other_tokenizers.describe(target, draft)

    return None
