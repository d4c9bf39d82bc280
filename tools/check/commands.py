"""Whether a command that a document shows can be typed: its verb, its options, its module, its make target."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

PREFIXES = ("$", "sudo", "time", "exec")
END = re.compile(r"^(?:\||\|\||&&?|;|>>?|<|2>.*|#.*)$")
WORD = re.compile(r"^[a-z][a-z0-9|-]*$")  # a verb, or several: create|list|revoke


def command_faults(
    line: str, parsers: Mapping[str, argparse.ArgumentParser], make_targets: Set[str], root: Path
) -> Iterator[str]:
    """The parts of a line of code that cannot be typed; a line that is none of the project's commands has no faults."""
    words = [word.strip("[]()") for word in line.split()]
    while words and (words[0] in PREFIXES or re.match(r"^[A-Z_]+=", words[0])):
        words = words[1:]
    end = next((n for n, word in enumerate(words) if END.match(word)), len(words))
    rest = words[end + 1 :]
    words = words[:end]
    if rest:
        yield from command_faults(" ".join(rest), parsers, make_targets, root)
    if not words:
        return

    command = words[0].rsplit("/", 1)[-1]
    if command in parsers:
        yield from parser_faults(command, words[1:], parsers[command])
    elif command == "make":
        yield from (
            f"`make {word}` is no target" for word in words[1:] if WORD.match(word) and word not in make_targets
        )
    elif command.startswith("python") and "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        top = root / "lab" if module.startswith("edgespec_lab") else root
        place = top / module.replace(".", "/")
        exists = place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
        if module.startswith(("tools", "edgespec_lab")) and not exists:
            yield f"`python -m {module}` does not exist"


def parser_faults(shown: str, words: list[str], parser: argparse.ArgumentParser) -> Iterator[str]:
    """Verbs and options among `words` that `parser` and its sub-parsers do not know."""
    options = parser._option_string_actions
    verbs = verbs_of(parser)
    is_value = False
    for n, word in enumerate(words):
        if word.startswith("-"):
            names = [name for name in word.split("=")[0].split("|") if re.match(r"^-{1,2}[a-z]", name)]
            yield from (f"`{shown}` has no option {name}" for name in names if name not in options)
            is_value = "=" not in word and any(name in options and options[name].nargs != 0 for name in names)
        elif is_value:
            is_value = False
        elif verbs and WORD.match(word):
            for verb in word.split("|"):
                if verb in verbs:
                    yield from parser_faults(f"{shown} {verb}", words[n + 1 :], verbs[verb])
                else:
                    yield f"`{shown} {verb}` is no command"
            return


def verbs_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The sub-commands of a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}
