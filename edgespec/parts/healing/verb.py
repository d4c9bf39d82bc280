"""The verb `edgespec learn`: a run of the training, and what a worker has kept and learnt while its owner was away."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from pathlib import Path

from edgespec.core.errors import AddressError, ConfigError, MissingPackageError
from edgespec.worker.part import WorkerVerb

TEXT = "train a draft on a target's text; or show or delete what this worker has kept to learn from"
LINE = "{:12}  {:28}  {:>6}  {:>9}  {}"


class LearnVerb:
    """The verb, with its forms `learn DRAFT`, `learn status` and `learn forget`."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds it to the command line."""
        WorkerVerb("learn", learn, TEXT, _arguments).add(verbs)


def _arguments(parser: ArgumentParser) -> None:
    """The options of a run; `status` and `forget` stand in the place of DRAFT."""
    parser.add_argument(
        "draft",
        metavar="DRAFT|status|forget",
        help="the draft, a GGUF file or a fetched name, which is not changed; or what to do with the kept texts",
    )
    parser.add_argument("who", nargs="?", default="", metavar="KEY", help="of `forget`: an API key or a cache group")
    parser.add_argument("--target", help="the target, a GGUF file or a fetched name")
    parser.add_argument("--base", help="the draft's weights less quantised (default: the target's, if they are its)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines or text (default: the target's own)")
    parser.add_argument("--held-out", type=Path, metavar="FILE", help="prompts that are only measured on")
    parser.add_argument("--held-back", type=int, default=32, metavar="N", help="prompts measured on (default: 32)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of writing and training, over all runs")
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps (default: by the minutes)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the healed draft (default: DRAFT.learnt.gguf)")
    parser.add_argument("--format", metavar="NAME", help="of the trained weights, as q4_0 (default: as they are)")
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N", help="tokens of a completion (default: 96)")
    parser.add_argument("--rank", type=int, default=16, metavar="N", help="of the updates (default: 16)")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate (default: 0.001)")
    parser.add_argument("--seed", type=int, default=1, help="of the updates, and which prompts are held back")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each core")
    parser.add_argument("--resume", action="store_true", help="go on from the state beside the output")


def learn(args: Namespace) -> int:
    """Runs one form of the verb. Returns the exit code. Raises EdgespecError."""
    if args.draft == "status":
        return show_kept(args)
    if args.draft == "forget":
        return forget_kept(args)
    if args.who:
        raise ConfigError(f"`edgespec learn` takes one draft, and {args.who} is a second one; leave it out.")
    if not args.target:
        raise ConfigError("`edgespec learn DRAFT` needs the target that the draft is to learn from: add --target.")
    return train(args)


def train(args: Namespace) -> int:
    """Trains, measures, and keeps the result if it is better. Returns the exit code. Raises EdgespecError."""
    try:
        import gguf  # noqa: F401
        import jinja2  # noqa: F401
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"`edgespec learn` needs the package {error.name}, which is not installed for {sys.executable}: run "
            '`pip install "edgespec[learn]"` there.'
        ) from error

    from edgespec.parts.healing.command import run

    return run(args)


def show_kept(args: Namespace) -> int:
    """`edgespec learn status`: a row for each API key. It reads the files, so that it needs no running worker."""
    import msgspec

    from edgespec.parts.healing.store import kept_rows, learnt_drafts
    from edgespec.worker import commands

    kept = kept_rows(_folder(args))
    lines = ["Nothing is kept to learn from."]
    if kept:
        lines = [LINE.format("KEY", "SHARED WITHIN", "TEXTS", "DISK", "OLDEST")]
    for row in kept:
        oldest = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.oldest))
        lines.append(
            LINE.format(
                row.key,
                row.scope[:28],
                row.texts,
                f"{row.bytes / 2**20:.1f} MB",
                oldest,
            )
        )

    drafts = learnt_drafts(_folder(args))
    for draft in drafts:
        lines.append(
            f"Learnt from {draft.trial.texts} texts of {draft.scope}: right {draft.trial.after:.3f} for "
            f"{draft.trial.before:.3f} on others"
        )
        if draft.path is not None:
            lines.append(f"    its draft: {draft.path}")
    return commands.say(
        args,
        {"keys": msgspec.to_builtins(kept), "drafts": msgspec.to_builtins(drafts, enc_hook=str)},
        "\n".join(lines),
    )


def forget_kept(args: Namespace) -> int:
    """`edgespec learn forget`: deletes the texts of a key, of a cache group, or all, and what was learnt from them."""
    from edgespec.parts.healing import store
    from edgespec.shared import control_client
    from edgespec.worker import commands

    try:
        texts = control_client.call(commands.worker_socket(args), "learn_forget", who=args.who)["texts"]
    except AddressError:  # no worker runs: nothing of it is in memory
        texts = store.forget_texts(_folder(args), args.who)
    return commands.say(args, {"texts": texts}, f"{texts} texts are deleted, with what was learnt from them.")


def _folder(args: Namespace) -> Path:
    from edgespec.parts.healing.store import FOLDER
    from edgespec.shared import folders
    from edgespec.worker import config

    return folders.state_dir("worker", config.given(args).daemon.state_dir) / FOLDER
