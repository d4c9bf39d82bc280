"""`edgespec models`: which models are here, whether two of them pair, fetching them, and making others of them.

`check` reads headers and tokenizers, applies the checks of a gateway's start, and tries llama.cpp with both.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edgespec.core.errors import EdgespecError, ModelError
from edgespec.lab.drafts import FORMATS, make_draft
from edgespec.lab.fetch import fetch, fetch_from_hub
from edgespec.shared import models
from edgespec.shared.fields import AUTO_MODELS
from edgespec.shared.folders import cache_dir, config_file
from edgespec.shared.known_answer import require_known_answer
from edgespec.shared.procstat import available_memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `edgespec models`."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    listing = verbs.add_parser("list", help="show the models that are here or configured")
    listing.set_defaults(run=show)
    check = verbs.add_parser("check", help="say whether a draft can draft for a target, and try llama.cpp with both")
    check.add_argument("target", metavar="TARGET", help="a GGUF file, a folder with safetensors, or a fetched name")
    check.add_argument("draft", metavar="DRAFT", nargs="?", help="a GGUF file; left out: only try llama.cpp")
    check.add_argument("--config", type=Path, metavar="PATH", help="gateway.toml, for engine, slots and context")
    check.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of it")
    check.add_argument("--measure", type=int, metavar="N", help="how often the draft is right on N prompts of the demo")
    check.set_defaults(run=check_pair)
    fetch = verbs.add_parser("fetch", help="download a model")
    fetch.add_argument(
        "name",
        metavar="NAME",
        help="OWNER/NAME, OWNER/NAME/FILE.gguf, or one of the demo's: " + ", ".join(AUTO_MODELS),
    )
    fetch.add_argument("--revision", metavar="REV", help="of a hub: a branch, tag or commit, kept from then on")
    fetch.set_defaults(run=fetch_named)
    make = verbs.add_parser("make", help="make a draft without some layers or in another format")
    make.add_argument("--drop", type=_layers, default=[], metavar="N[,N...]", help="layers to drop, counted from 0")
    make.add_argument("--format", choices=FORMATS, help="write the weights in this format (default: as they are)")
    make.add_argument("--source", type=Path, metavar="GGUF", help="what to start from (default: the demo's model)")
    make.add_argument("--out", type=Path, metavar="PATH", help="file of the draft")
    make.add_argument("--force", action="store_true", help="make it again when it is there")
    make.set_defaults(run=make_named)
    for verb in (listing, check, fetch, make):
        verb.description = verb.format_usage()
        verb.add_argument("--json", action="store_true", help="print JSON")


def show(options: argparse.Namespace) -> int:
    """Lists the models in the cache, and those that the usual configuration files name."""
    folder = models.model_dir()
    folders = {file.parent for file in folder.glob("*/*.safetensors")}
    found = [_row(path) for path in sorted([*folder.glob("*.gguf"), *folder.glob("*--*/*.gguf"), *folders])]
    converted = [_row(path) for path in sorted((cache_dir() / "targets").glob("*"))]
    configured = _configured()
    if options.json:
        print(json.dumps({"folder": str(folder), "models": found, "converted": converted, "configured": configured}))
        return 0
    print(f"{folder}: {len(found)} models")
    for row in found:
        print(f"  {row['mb']:9.1f} MB  {Path(row['path']).relative_to(folder)}")
    if converted:
        print(f"converted for torch: {sum(row['mb'] for row in converted):.0f} MB in {cache_dir() / 'targets'}")
    for entry in configured:
        print(f"{entry['key']} = {entry['model']}: {entry['fault'] or entry['path']}")
    return 0


def _configured() -> list[dict[str, Any]]:
    """What the usual configuration files name, each with its path, or with what is wrong."""
    from cloud_gateway.parts import all_parts
    from cloud_gateway.process import config as gateway
    from edgespec import parts as worker_parts
    from edgespec.worker import config as worker

    named: list[tuple[str, str]] = []
    if config_file("gateway").exists():
        settings = gateway.load(None, all_parts())
        named += [("target.model", settings.target.model), ("local_draft.model", settings.local_draft.model)]
    if config_file("worker").exists():
        named.append(("draft.model", worker.load(None, worker_parts.all_parts()).draft.model))
    found = []
    named_by_parts = {model for part in all_parts() for model in part.drafts}
    for key, model in named:
        if model and model not in named_by_parts:
            path, fault = "", None
            try:
                place = models.resolve_model(model)
                path, fault = str(place), None if place.exists() else "it is not there"
            except EdgespecError as error:
                fault = str(error)
            found.append({"key": key, "model": model, "path": path, "fault": fault})
    return found


def check_pair(options: argparse.Namespace) -> int:
    """Prints what both are, or raises the error with which a gateway would refuse them."""
    if options.draft is None:
        return _try(options)
    try:
        facts = _facts(options)
    except EdgespecError as error:
        if not options.json:
            raise
        print(json.dumps({"pairs": False, "reason": str(error)}))
        return error.exit_code
    if options.json:
        print(json.dumps({"pairs": True, **facts}))
    else:
        target, draft = facts["target"], facts["draft"]
        print(
            f"target  {target['name']}: family {target['family']}, engine {facts['engine']}, "
            f"{target['weights_mb']:.0f} MB of weights, {target['slot_mb']:.0f} MB for each of {facts['slots']} slots"
        )
        print(f"draft   {draft['name']}: family {draft['family']}, {draft['weights_mb']:.0f} MB")
        print(f"They pair: {facts['method']}; {facts['available_mb']:.0f} MB are available.")
        if found := facts.get("measured"):
            print(
                f"Over {found['tokens']} greedy tokens: a draft token is right {found['right']:.2f} of the time, and "
                f"{found['accepted']:.1f} of a tree of 16 are accepted after six draft steps."
            )
    return 0


def _try(options: argparse.Namespace) -> int:
    from cloud_gateway.parts import all_parts
    from cloud_gateway.process import config
    from edgespec.shared.settings import assigned

    path = models.resolve_model(options.target)
    layers = assigned(config.load(options.config, all_parts()), options.set).target.n_gpu_layers
    if not require_known_answer(path, layers, again=True):
        raise ModelError(f"llama.cpp cannot load {path}: name a GGUF file of a decoder-only transformer.")
    print(json.dumps({"model": str(path)}) if options.json else f"{path.name}: llama.cpp computes what it should")
    return 0


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    from cloud_gateway.models.headers import family_of
    from cloud_gateway.parts import all_parts
    from cloud_gateway.process import config
    from cloud_gateway.process.targets import check_models, need_of
    from edgespec.lab.pairs import together
    from edgespec.llamacpp.tokenizer import translation
    from edgespec.shared.hf_vocabulary import vocabulary
    from edgespec.shared.settings import assigned, overridden
    from edgespec.shared.vocabfiles import gguf_vocabulary

    named = {"target.model": options.target, "local_draft.model": options.draft}
    settings = overridden(assigned(config.load(options.config, all_parts()), options.set), named)
    target, draft = models.resolve_model(options.target), models.resolve_model(options.draft)
    pair = None if target.is_dir() or draft.is_dir() else translation(target, draft, gguf_vocabulary(draft).digest)
    if pair is not None:  # a worker's only
        settings = overridden(settings, {"local_draft.model": ""})
    plan, shared = check_models(settings), vocabulary(target)
    require_known_answer(draft, settings.local_draft.n_gpu_layers, again=True)
    if plan.engine == "llamacpp":
        require_known_answer(target, settings.target.n_gpu_layers, again=True)
    need = need_of(settings.target, plan.engine, target, settings.sources.heads)
    return {
        **together(target, draft, pair, options.measure, len(shared.entries)),
        "engine": plan.engine,
        "slots": settings.target.slots,
        "tokens": len(shared.entries),
        "tokenizer": shared.digest.hex(),
        "available_mb": available_memory() / 1e6,
        "target": {
            "name": target.name,
            "family": family_of(target),
            "weights_mb": need.weights / 1e6,
            "slot_mb": need.token * settings.target.context / 1e6,
        },
        "draft": {"name": draft.name, "family": family_of(draft), "weights_mb": draft.stat().st_size / 1e6},
    }


def fetch_named(options: argparse.Namespace) -> int:
    """Fetches one model and prints where it is. Raises ModelError."""
    if options.name in AUTO_MODELS:
        path = _fetch_demo(options.name)
    else:
        path = fetch_from_hub(options.name, models.model_dir(), revision=options.revision)
    print(json.dumps({"name": options.name, "path": str(path)}) if options.json else f"{options.name}: {path}")
    return 0


def _fetch_demo(name: str) -> Path:
    """The demo's model, or the draft of this name, which is made of it unless it is there."""
    if name == "auto:gemma":
        return fetch(models.GEMMA)
    source = fetch(models.QUANTISED)
    layers, fmt = {"auto:quantised": ([], None), "auto:requantised": ([], "q4_0"), "auto:dropped": ([10], None)}[name]
    path = models.model_dir() / models.draft_name(source.name, layers, fmt)
    if not path.is_file():
        make_draft(source, path, layers, fmt)
    return path


def make_named(options: argparse.Namespace) -> int:
    """Makes a draft unless it is there. Raises ConfigError, ModelError."""
    source = options.source or models.quantised()
    out = options.out or models.model_dir() / models.draft_name(source.name, options.drop, options.format)
    made = options.force or not out.is_file()
    if made:
        make_draft(source, out, options.drop, options.format)
    size = out.stat().st_size / 1e6
    said = "made" if made else "was there already"
    print(json.dumps({"path": str(out), "made": made}) if options.json else f"{out}: {said}, {size:.0f} MB")
    return 0


def _layers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _row(path: Path) -> dict[str, Any]:
    return {"path": str(path), "mb": round(_bytes(path) / 1e6, 1)}


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
