"""`edgespec models`: which models are here, fetching them, and making others of them.

`cloud-gateway models` has the same verbs, and checks whether a target and a draft pair, as a gateway's start does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError, EdgespecError, ModelError
from edgespec.models.drafts import FORMATS, make_draft
from edgespec.models.fetch import fetch, fetch_from_hub
from edgespec.shared import models
from edgespec.shared.fields import AUTO_MODELS
from edgespec.shared.folders import cache_dir
from edgespec.shared.part import Part, require_trials

Verbs = argparse._SubParsersAction
ConfiguredModels = Callable[[argparse.Namespace], Mapping[str, str]]
"""Dotted keys of the program's configuration file, with the model that each names; raises ConfigError."""


def add_model_verbs(parser: argparse.ArgumentParser, configured: ConfiguredModels) -> Verbs[argparse.ArgumentParser]:
    """Adds the verbs `list`, `fetch` and `make`, and returns the subparsers, to which a program adds its `check`."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    _add_list(verbs, configured)
    _add_fetch(verbs)
    _add_make(verbs)
    return verbs


def _add_list(verbs: Verbs[argparse.ArgumentParser], configured: ConfiguredModels) -> None:
    parser = verbs.add_parser("list", help="show the models that are here or configured")
    parser.set_defaults(run=partial(list_models, configured))
    finish_parser(parser)


def _add_fetch(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("fetch", help="download a model")
    names = ", ".join(AUTO_MODELS)
    parser.add_argument("name", metavar="NAME", help=f"OWNER/NAME, OWNER/NAME/FILE.gguf, or one of the demo's: {names}")
    parser.add_argument("--revision", metavar="REV", help="of a hub: a branch, tag or commit, kept from then on")
    parser.set_defaults(run=fetch_named)
    finish_parser(parser)


def _add_make(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("make", help="make a draft without some layers or in another format")
    parser.add_argument("--drop", type=_layers, default=[], metavar="N[,N...]", help="layers to drop, counted from 0")
    parser.add_argument("--format", choices=FORMATS, help="write the weights in this format (default: as they are)")
    parser.add_argument("--source", type=Path, metavar="GGUF", help="what to start from (default: the demo's model)")
    parser.add_argument("--out", type=Path, metavar="PATH", help="file of the draft")
    parser.add_argument("--force", action="store_true", help="make it again when it is there")
    parser.set_defaults(run=make_named)
    finish_parser(parser)


def finish_parser(parser: argparse.ArgumentParser) -> None:
    """Gives a verb's parser its description, once all its arguments are there, and the option `--json`."""
    parser.description = parser.format_usage()
    parser.add_argument("--json", action="store_true", help="print JSON")


def list_models(configured: ConfiguredModels, options: argparse.Namespace) -> int:
    """Lists the models in the cache, and those that the program's configuration file names."""
    folder = models.model_dir()
    hub_folders = {file.parent for file in folder.glob("*/*.safetensors")}
    files = sorted([*folder.glob("*.gguf"), *folder.glob("*--*/*.gguf"), *hub_folders])
    present = [_row(path) for path in files]
    converted = [_row(path) for path in sorted((cache_dir() / "targets").glob("*"))]
    named = [_resolved(key, model) for key, model in configured(options).items()]

    if options.json:
        print(json.dumps({"folder": str(folder), "models": present, "converted": converted, "configured": named}))
        return 0

    print(f"{folder}: {len(present)} models")
    for row in present:
        print(f"  {row['mb']:9.1f} MB  {Path(row['path']).relative_to(folder)}")
    if converted:
        megabytes = sum(row["mb"] for row in converted)
        print(f"converted for torch: {megabytes:.0f} MB in {cache_dir() / 'targets'}")
    for entry in named:
        print(f"{entry['key']} = {entry['model']}: {entry['fault'] or entry['path']}")

    return 0


def _resolved(key: str, model: str) -> dict[str, Any]:
    """A configured model with its path, or with what is wrong."""
    path = ""
    fault = None
    try:
        place = models.resolve_model(model)
        path = str(place)
        if not place.exists():
            fault = "it is not there"
    except EdgespecError as error:
        fault = str(error)

    return {"key": key, "model": model, "path": path, "fault": fault}


def try_model(parts: Sequence[Part], name: str, gpu_layers: int, as_json: bool) -> int:
    """Loads one model in llama.cpp and checks what it computes, by the trials of these parts.

    Raises ModelError, LibraryError, and ConfigError if no part has a trial.
    """
    path = models.resolve_model(name)
    if all(part.trial is None for part in parts):
        raise ConfigError(f"{path.name} was not tried: no part of this program tries llama.cpp with a model.")
    if not require_trials(parts, path, gpu_layers, again=True):
        raise ModelError(f"llama.cpp cannot load {path}: name a GGUF file of a decoder-only transformer.")

    if as_json:
        print(json.dumps({"model": str(path)}))
    else:
        print(f"{path.name}: llama.cpp computes what it should")
    return 0


def fetch_named(options: argparse.Namespace) -> int:
    """Fetches one model and prints where it is. Raises ModelError."""
    if options.name in AUTO_MODELS:
        path = _fetch_demo(options.name)
    else:
        path = fetch_from_hub(options.name, models.model_dir(), revision=options.revision)

    if options.json:
        print(json.dumps({"name": options.name, "path": str(path)}))
    else:
        print(f"{options.name}: {path}")
    return 0


def _fetch_demo(name: str) -> Path:
    """The demo's model, or the draft of this name, which is made of it unless it is there."""
    if name == "auto:gemma":
        return fetch(models.GEMMA)

    source = fetch(models.QUANTISED)
    made_from: dict[str, tuple[list[int], str | None]] = {
        "auto:quantised": ([], None),
        "auto:requantised": ([], "q4_0"),
        "auto:dropped": ([10], None),
    }
    layers, weight_format = made_from[name]
    path = models.model_dir() / models.draft_name(source.name, layers, weight_format)
    if not path.is_file():
        make_draft(source, path, layers, weight_format)
    return path


def make_named(options: argparse.Namespace) -> int:
    """Makes a draft unless it is there. Raises ConfigError, ModelError."""
    source = options.source or models.quantised()
    out = options.out or models.model_dir() / models.draft_name(source.name, options.drop, options.format)
    is_made = options.force or not out.is_file()
    if is_made:
        make_draft(source, out, options.drop, options.format)

    if options.json:
        print(json.dumps({"path": str(out), "made": is_made}))
        return 0

    outcome = "made" if is_made else "was there already"
    print(f"{out}: {outcome}, {out.stat().st_size / 1e6:.0f} MB")
    return 0


def _layers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _row(path: Path) -> dict[str, Any]:
    return {"path": str(path), "mb": round(_bytes(path) / 1e6, 1)}


def _bytes(path: Path) -> int:
    """The size of a file, or of all files of a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
