"""What the verbs of `edgespec models` do: list the models that are here, fetch them, and make others of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError, EdgespecError, ModelError
from edgespec.models.drafts import make_draft
from edgespec.parts.model_files.fetch import fetch, fetch_from_hub
from edgespec.shared import models
from edgespec.shared.fields import AUTO_MODELS
from edgespec.shared.folders import cache_dir
from edgespec.shared.part import Part, require_trials


def list_models(configured: Mapping[str, str], options: argparse.Namespace) -> int:
    """Lists the models in the cache, and those that the program's configuration file names by its dotted keys."""
    folder = models.model_dir()
    hub_folders = {file.parent for file in folder.glob("*/*.safetensors")}
    files = sorted([*folder.glob("*.gguf"), *folder.glob("*--*/*.gguf"), *hub_folders])
    present = [_row(path) for path in files]
    converted = [_row(path) for path in sorted((cache_dir() / "targets").glob("*"))]
    named = [_resolved(key, model) for key, model in configured.items()]

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


def _row(path: Path) -> dict[str, Any]:
    return {"path": str(path), "mb": round(_bytes(path) / 1e6, 1)}


def _bytes(path: Path) -> int:
    """The size of a file, or of all files of a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
