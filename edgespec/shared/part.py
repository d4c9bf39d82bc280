"""What a part brings to either program: tables of its configuration file, and verbs of its command line.

A part is a folder that can be removed: its code, its settings, its verbs, and one line in the program's list of parts
(`cloud_gateway/parts/__init__.py`, `edgespec/parts/__init__.py`). No other file of the product names a part: the
program passes the list through, and calls the seams that each part fills. Another distribution adds a part by an entry
point. Names that are looked up at run time, such as hooks called by a string, were not taken: who calls a seam is found
by its type.
"""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import msgspec

from edgespec.core.errors import ConfigError
from edgespec.shared.settings import Removed, Section
from edgespec.shared.threads import ONE_CORE_LEFT, ThreadRule

if TYPE_CHECKING:  # commands import this file, and open no port
    from edgespec.shared.guards import Guards, MakeGuards
    from edgespec.shared.nearby import Nearby


class Verb(Protocol):
    """A verb of the command line. The program calls `add` once, while it builds its parser."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds the verb's parser, whose default `run` is its function: `Namespace` -> exit code.

        It imports the code of the verb only when `run` is called.
        """


class Settings(Section, frozen=True):
    """Base of a program's settings: the tables of the core as fields, and those of the parts by their type."""

    tables: ClassVar[Mapping[type[msgspec.Struct], str]] = {}
    """The name of the table that holds the keys of each section of a part."""
    parts: ClassVar[Sequence[Part]] = ()
    """The parts that it was composed of, for values that a part allows in a table of the core."""
    checks: ClassVar[Sequence[Check]] = ()
    """Those of the parts."""

    def of(self, section: type[S]) -> S:
        """The settings of this type, or its defaults if the program has no part that brings it."""
        for name in self.__struct_fields__:
            table = getattr(self, name)
            if isinstance(table, section):
                return table

        if section not in self.tables:
            return section()

        # The section adds keys to a table of the core.
        table = getattr(self, self.tables[section])
        return section(**{name: getattr(table, name) for name in section.__struct_fields__})

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Values that the checks of the parts refuse; a program's settings add their own."""
        for check in self.checks:
            yield from check(self)


S = TypeVar("S", bound=msgspec.Struct)
Program = TypeVar("Program", bound=Settings)
Check = Callable[[Settings], Iterable[tuple[str, str]]]
"""Finds values that are valid alone but not together: (dotted key, what it must be). Called once all are read."""


class ModelTrial(Protocol):
    """Tries llama.cpp with a model, before a program computes with it."""

    def __call__(self, model: Path, gpu_layers: int, *, again: bool) -> bool:
        """Called in a thread, before each load of a model, and by `models check` and `doctor`. It may start processes.

        `again`: also if this model has passed before. False if the model cannot be loaded, so that the program's own
        error names the cause. Raises LibraryError if llama.cpp must not be used with it.
        """


class MakeNearby(Protocol):
    """Makes what finds and announces machines. Called once by a program, or a verb, that needs it."""

    def __call__(self, settings: Settings) -> Nearby:
        """It opens nothing, and imports what is heavy only when something is searched for or announced."""


def no_conflicts(settings: Settings) -> Iterable[tuple[str, str]]:
    """A part whose settings exclude no others."""
    return ()


Lines = Iterable[tuple[str, str]]
"""A name and a sentence each."""


def no_lines(status: Mapping[str, Any]) -> Lines:
    """A part that adds nothing to its program's status."""
    return ()


@dataclass(frozen=True, eq=False)
class Part:
    """A part of either program; each field is empty if the part has nothing of that kind."""

    name: str
    settings: Mapping[str, type[Section]] = field(default_factory=dict)
    """Tables of the program's TOML file, by name. Each key has a default. The keys of a table that the program, or a
    part before this one, has too are added to that table."""
    check: Check = no_conflicts
    verbs: Sequence[Verb] = ()
    removed: Mapping[str, Removed] = field(default_factory=dict)
    """Settings of earlier versions, dotted."""
    trial: ModelTrial | None = None
    guards: MakeGuards | None = None
    """Guards the ports of the program; those of the first part which has some are used."""
    threads: ThreadRule | None = None
    """Chooses how many threads evaluate models; that of the first part is used (`edgespec/shared/threads.py`)."""
    nearby: MakeNearby | None = None
    """Finds machines on the networks of this one, and announces it there; that of the first part which has one is
    used."""
    example: Path | None = None
    """A file with each key of its settings, its default and its reason, as in the program's shipped file."""


def require_trials(parts: Sequence[Part], model: Path, gpu_layers: int, *, again: bool = False) -> bool:
    """Has each part that tries models try this one; False if it cannot be loaded. Raises LibraryError."""
    loaded = [part.trial(model, gpu_layers, again=again) for part in parts if part.trial is not None]
    return all(loaded)


def guards_of(parts: Sequence[Part]) -> Guards:
    """The guards of the first part that brings some, or the core's. Called before the program opens a port."""
    from edgespec.shared.guards import PLAIN  # few workers open a port

    for part in parts:
        if part.guards is not None:
            return part.guards()
    return PLAIN


def thread_rule(parts: Sequence[Part]) -> ThreadRule:
    """That of the first part which brings one, or the core's. Called by loading in both programs, for each model."""
    for part in parts:
        if part.threads is not None:
            return part.threads
    return ONE_CORE_LEFT


def nearby_of(parts: Sequence[Part], settings: Settings) -> Nearby:
    """What the first part that has something finds and announces machines with, or the core's nothing."""
    from edgespec.shared.nearby import ALONE

    for part in parts:
        if part.nearby is not None:
            return part.nearby(settings)
    return ALONE


P = TypeVar("P", bound=Part)


def brought(group: str, kind: type[P]) -> tuple[P, ...]:
    """The parts that other distributions have registered as entry points of a group, in the order of their names.

    Raises ConfigError for an entry point that is no part, or cannot be imported.
    """
    parts: list[P] = []
    for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
        try:
            part = entry.load()
        except Exception as error:
            who = entry.dist.name if entry.dist is not None else entry.value
            raise ConfigError(
                f"{who} brings the part {entry.name}, which cannot be imported ({type(error).__name__}: {error}): "
                "repair that distribution, or uninstall it."
            ) from error
        if not isinstance(part, kind):
            raise ConfigError(f"The entry point {entry.name} of {group} is no {kind.__name__}: {entry.value}.")
        parts.append(part)

    return tuple(parts)


def composed(core: type[Program], parts: Sequence[Part]) -> type[Program]:
    """The settings of a program with those of its parts, as a struct below `core`.

    Raises ValueError if two of them have the same key.
    """
    tables: dict[type[Section], str] = {}
    brought_by_table: dict[str, list[type[Section]]] = {}
    for part in parts:
        for table, section in part.settings.items():
            brought_by_table.setdefault(table, []).append(section)
            tables[section] = table

    core_tables = {info.name: info.default for info in msgspec.structs.fields(core)}
    fields: list[tuple[str, Any, Any]] = []
    for table, sections in brought_by_table.items():
        kind = _table_type(table, core_tables.get(table), sections)
        fields.append((table, kind, kind()))

    removed = dict(core.removed)
    for part in parts:
        removed.update(part.removed)
    checks = tuple(part.check for part in parts)
    namespace = {
        "tables": tables,
        "parts": tuple(parts),
        "checks": checks,
        "removed": removed,
    }

    schema: Any = msgspec.defstruct(
        core.__name__,
        fields,
        bases=(core,),
        namespace=namespace,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return schema


def _table_type(name: str, of_core: Section | None, sections: Sequence[type[Section]]) -> type[Section]:
    """The type of one table: a section alone as it is, or one that has the keys of all."""
    if of_core is None and len(sections) == 1:
        return sections[0]

    base = Section if of_core is None else type(of_core)
    keys: set[str] = set(base.__struct_fields__)
    fields: list[tuple[str, Any, Any]] = []
    for section in sections:
        for key in msgspec.structs.fields(section):
            if key.name in keys:
                raise ValueError(f"two parts have the key {name}.{key.name}")
            keys.add(key.name)
            fields.append((key.name, key.type, key.default))

    kind: Any = msgspec.defstruct(
        base.__name__,
        fields,
        bases=(base,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return kind
