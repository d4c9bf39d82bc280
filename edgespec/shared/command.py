"""What both command lines do around a verb: an expected failure is one sentence on stderr and its exit code."""

from __future__ import annotations

import difflib
import faulthandler
import os
import re
import signal
import sys
from argparse import REMAINDER, SUPPRESS, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NoReturn

from edgespec.core.errors import EdgespecError, MissingPackageError
from edgespec.shared import logs
from edgespec.shared.installed import missing_package, shipped_text
from edgespec.shared.part import Part

Command = Callable[[Namespace], int]
MISTYPED = re.compile(r"(?:argument .*: invalid choice|unrecognized arguments): '?([^'\s]+)")


class Parser(ArgumentParser):
    """Names the verb or option that a mistyped one may stand for."""

    def error(self, message: str) -> NoReturn:
        """Ends with argparse's exit code 2."""
        if typed := MISTYPED.match(message):
            close = difflib.get_close_matches(typed[1], [*_names(self)], 1)
            message += f"\nDid you mean `{close[0]}`?" if close else ""
        super().error(message)


def _names(parser: ArgumentParser) -> Iterator[str]:
    """Verbs and options of a parser and of those below it."""
    yield from parser._option_string_actions
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, below in action.choices.items():
                yield name
                yield from _names(below)


def add_verb(
    settings: str,
    verbs: _SubParsersAction[ArgumentParser],
    name: str,
    run: Command,
    text: str,
    *,
    json: bool = True,
    sets: bool = True,
) -> ArgumentParser:
    """A verb that reads the configuration file `settings`, of which `--set` overrides keys, and with `json` can print
    JSON. Returns its parser.
    """
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    text = f"{settings} (default: the one in ~/.config/edgespec)"
    parser.add_argument("--config", type=Path, metavar="PATH", help=text)
    if sets:
        text = f"override a key of {settings}, as daemon.log_level=debug"
        parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, **{} if sets else {"set": []})
    return parser


def no_arguments(parser: ArgumentParser) -> None:
    """The arguments of a verb that has none of its own."""


@dataclass(frozen=True, slots=True)
class ConfiguredVerb:
    """Base of a program's verbs with the options that all have: `--config`, `--set`, `--json`."""

    configuration: ClassVar[str]
    """The name of the program's configuration file."""
    name: str
    run: Command
    """Runs the verb and returns its exit code; it imports the verb's code."""
    help: str
    arguments: Callable[[ArgumentParser], None] = no_arguments
    """Adds the verb's own arguments to its parser."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds the verb to the command line."""
        self.arguments(add_verb(self.configuration, verbs, self.name, self.run, self.help))


def add_missing_verbs(verbs: _SubParsersAction[ArgumentParser], lab: Mapping[str, str]) -> None:
    """Adds the verbs of edgespec-lab that no installed distribution brings; each says how to get it.

    `lab`: their names, each with a line of help.
    """
    for name, text in lab.items():
        if name not in verbs.choices:
            parser = verbs.add_parser(name, help=text, add_help=False, prefix_chars="\0")
            parser.add_argument("words", nargs=REMAINDER, help=SUPPRESS)
            parser.set_defaults(run=partial(_not_installed, name))


def _not_installed(name: str, _: Namespace) -> int:
    raise MissingPackageError(
        f"`edgespec {name}` is in the distribution edgespec-lab, which is not installed for {sys.executable}: "
        "run `pip install ./lab` with it in a checkout of edgespec."
    )


def add_forwarded_verb(verbs: _SubParsersAction[ArgumentParser], name: str, text: str, program: str) -> None:
    """Adds a verb that the module `program` runs in this process's place, with all its arguments."""

    def run_there(args: Namespace) -> int:
        command = [sys.executable, "-m", program, name, *args.words]
        os.execv(sys.executable, command)  # noqa: S606  no shell

    parser = verbs.add_parser(name, help=text, add_help=False, prefix_chars="\0")
    parser.add_argument("words", nargs=REMAINDER, help=SUPPRESS)
    parser.set_defaults(run=run_there)


def add_config_verb(verbs: _SubParsersAction[ArgumentParser], file: str, parts: Sequence[Part]) -> None:
    """The verb that prints a shipped configuration, with the settings of the parts."""

    def show(_: Namespace) -> int:
        from edgespec.shared.shipped import commented, example

        print(commented(example(shipped_text(file), parts)), end="")
        return 0

    text = f"print {file} with every setting commented out, its default and its reason"
    verbs.add_parser("config", help=text, description=f"{text[0].upper()}{text[1:]}.").set_defaults(run=show)


def add_shell_verbs(parser: ArgumentParser, verbs: _SubParsersAction[ArgumentParser]) -> None:
    """The verbs that print a shell's completion of `parser`, and its manual page (extra `shell`)."""

    def complete(args: Namespace) -> int:
        import shtab

        print(shtab.complete(parser, args.shell))
        return 0

    def page(_: Namespace) -> int:
        from argparse_manpage.manpage import Manpage

        made = Manpage(parser)
        made.manual = "edgespec"
        made.description = parser.description
        print(made)
        return 0

    text = "print what makes a shell complete this program's commands"
    completion = verbs.add_parser("completion", help=text, description=f"{text[0].upper()}{text[1:]}.")
    completion.add_argument("shell", choices=("bash", "zsh"), help="the shell")
    completion.set_defaults(run=complete)
    verbs.add_parser("man", help="print the manual page", description="Print the manual page.").set_defaults(run=page)


def run(program: str, build: Callable[[], ArgumentParser], argv: Sequence[str] | None) -> int:
    """Builds the parser, runs the verb that the arguments name, by its `run`, and returns the exit code.

    A crash in native code prints the Python places of all threads from here on.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(2)
    with logs.policy():
        try:
            args = build().parse_args(argv)
            code = int(args.run(args))
            sys.stdout.flush()
        except EdgespecError as error:
            print(f"{program}: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:  # the reader of our output left, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # avoids a second BrokenPipeError at exit
            return 128 + signal.SIGPIPE
        except Exception as error:  # noqa: BLE001  its text may quote a peer or a client: only places are printed
            if isinstance(error, ModuleNotFoundError):
                missing = missing_package(error.name, program)
            else:
                missing = None
            print(f"{program}: {missing or logs.failure(error)}", file=sys.stderr)
            return (missing or EdgespecError).exit_code

    return code
