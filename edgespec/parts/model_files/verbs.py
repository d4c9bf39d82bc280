"""`edgespec models`: which models are here, fetching them, and making others of them.

`cloud-gateway models` has the same verbs, and checks whether a target and a draft pair, as a gateway's start does.
Both command lines are built of this file alone; the code of a verb is imported when it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from edgespec.core.errors import ConfigError
from edgespec.models.drafts import FORMATS
from edgespec.shared import folders
from edgespec.shared.command import add_verb
from edgespec.shared.fields import AUTO_MODELS
from edgespec.worker import config

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
    parser.set_defaults(run=partial(_list, configured))
    finish_parser(parser)


def _add_fetch(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("fetch", help="download a model")
    names = ", ".join(AUTO_MODELS)
    parser.add_argument("name", metavar="NAME", help=f"OWNER/NAME, OWNER/NAME/FILE.gguf, or one of the demo's: {names}")
    parser.add_argument("--revision", metavar="REV", help="of a hub: a branch, tag or commit, kept from then on")
    parser.set_defaults(run=_fetch)
    finish_parser(parser)


def _add_make(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("make", help="make a draft without some layers or in another format")
    parser.add_argument("--drop", type=_layers, default=[], metavar="N[,N...]", help="layers to drop, counted from 0")
    parser.add_argument("--format", choices=FORMATS, help="write the weights in this format (default: as they are)")
    parser.add_argument("--source", type=Path, metavar="GGUF", help="what to start from (default: the demo's model)")
    parser.add_argument("--out", type=Path, metavar="PATH", help="file of the draft")
    parser.add_argument("--force", action="store_true", help="make it again when it is there")
    parser.set_defaults(run=_make)
    finish_parser(parser)


def finish_parser(parser: argparse.ArgumentParser) -> None:
    """Gives a verb's parser its description, once all its arguments are there, and the option `--json`."""
    parser.description = parser.format_usage()
    parser.add_argument("--json", action="store_true", help="print JSON")


def _layers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _list(configured: ConfiguredModels, options: argparse.Namespace) -> int:
    from edgespec.parts.model_files import command

    return command.list_models(configured(options), options)


def _fetch(options: argparse.Namespace) -> int:
    from edgespec.parts.model_files import command

    return command.fetch_named(options)


def _make(options: argparse.Namespace) -> int:
    from edgespec.parts.model_files import command

    return command.make_named(options)


class ModelsVerb:
    """`edgespec models`."""

    def add(self, verbs: Verbs[argparse.ArgumentParser]) -> None:
        """Adds the verb to the command line of the worker."""
        text = "list models, fetch them, and make drafts of them"
        parser = verbs.add_parser("models", help=text, description=(__doc__ or "").partition("\n")[0])
        actions = add_model_verbs(parser, _configured)

        text = "load a model in llama.cpp and check what it computes"
        check = add_verb("worker.toml", actions, "check", _check, text)
        check.add_argument("model", metavar="MODEL", help="a GGUF file, or a fetched name")
        check.add_argument("draft", metavar="DRAFT", nargs="?", help=argparse.SUPPRESS)


def _configured(options: argparse.Namespace) -> Mapping[str, str]:
    """The models of worker.toml, if there is one."""
    if not folders.config_file("worker").exists():
        return {}
    return {"draft.model": config.load(None, options.parts).draft.model}


def _check(options: argparse.Namespace) -> int:
    from edgespec.parts.model_files import command

    if options.draft is not None:
        pair = f"{options.model} {options.draft}"
        raise ConfigError(f"Whether two models pair is checked by a gateway: run `cloud-gateway models check {pair}`.")

    gpu_layers = config.given(options).draft.n_gpu_layers
    return command.try_model(options.parts, options.model, gpu_layers, options.json)
