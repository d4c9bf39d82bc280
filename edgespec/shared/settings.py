"""Reads TOML configuration files into frozen structs; an error is one sentence: the place, the fault, what is allowed.

All faults of a file are in one message, a line each. A setting of an earlier version is only mentioned if the file has
the value that was its default: a file that was written with every default of its time then still loads.

A schema is a frozen `Section` whose fields are frozen structs (the tables), tuples of them (arrays of tables, whose
keys may be without a default) or annotated plain types (the keys). The allowed values in a message are derived from the
type, so they cannot disagree with the check. If the type is not enough,
`Meta(extra={"allowed": ..., "check": ...})` adds a description and a function that raises ValueError; with
`"hidden": True` a wrong value is not repeated in the message. A field with `"fixed": True` is a constant that programs
may replace in the struct: it is no key of a file or a command line.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar, get_args, get_origin

import msgspec
from msgspec import inspect

from edgespec.core.errors import ConfigError
from edgespec.shared import folders

log = logging.getLogger("edgespec.shared.settings")

MAX_FILE_BYTES = 64 * 1024
COMMAND_LINE = "Command line"
"""The place of a wrong value in messages, as the name of a file."""
_SHOWN = 60  # characters of a wrong value that a message repeats


@dataclass(frozen=True, slots=True)
class Removed:
    """A setting of earlier versions."""

    instead: str
    """A sentence that says what holds in its place."""
    defaults: tuple[object, ...]
    """The values that shipped files had: a file with one of these loads, with a warning."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the tables of a configuration, and of the configuration itself."""

    removed: ClassVar[Mapping[str, Removed]] = {}
    """Of the root: keys of earlier versions, dotted."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Keys whose values are valid alone but not together: (dotted key, what it must be).

        A key of an array's table has the table's number, from 0: `endpoints.0.name`. Only the root's method is called.
        """
        yield from ()


Settings = TypeVar("Settings", bound=Section)
Table = TypeVar("Table", bound=msgspec.Struct)
Fault = tuple[tuple[str, ...], str]
"""A key, and the rest of the sentence about it."""


class _Faults(Exception):
    """What is wrong with a configuration; `parse` and `overridden` make one ConfigError of it."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = faults


def load(path: Path, schema: type[Settings]) -> Settings:
    """Reads and checks one file. Raises ConfigError: missing or unreadable file, bad TOML, any wrong key or value."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; name an existing one with --config.") from None
    except OSError as error:
        raise ConfigError(f"{path}: the file cannot be read ({error.strerror or error}).") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: {len(raw)} bytes are too many for a configuration (limit {MAX_FILE_BYTES}).")

    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: the file is not UTF-8 text.") from None

    return parse(text, schema, str(path))


def load_usual(path: Path | None, role: folders.Role, schema: type[Settings]) -> Settings:
    """The settings of the named file, else of the role's file in the user's configuration folder, else the defaults.

    Raises ConfigError, also if a named file does not exist.
    """
    usual = folders.config_file(role)
    if path is None and not folders.exists(usual):
        return schema()
    return load(path or usual, schema)


def parse(text: str, schema: type[Settings], where: str) -> Settings:
    """`load` for text; `where` names it in messages."""
    try:
        table = _toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_sentence(str(error), text, where)) from None

    def placed(fault: Fault) -> tuple[int, str]:
        key, sentence = fault
        line = find_line(text, key)
        if line is None:
            return 0, f"{where}: {sentence}"
        return line, f"{where}, line {line}: {sentence}"

    try:
        kept, ignored = _without_removed(schema, table)
        settings = _build(schema, kept, ())
        _check_together(settings, kept)
    except _Faults as wrong:
        lines = sorted(map(placed, wrong.faults))
        raise ConfigError("\n".join(sentence for _, sentence in lines)) from None

    if ignored:
        names = ", ".join(f"`{key}`" for key in ignored)
        log.warning(
            "%s: these settings of an earlier version have no effect, remove them: %s.",
            where,
            names,
        )
    return settings


def overridden(settings: Settings, values: Mapping[str, object]) -> Settings:
    """A copy with the keys replaced whose value is not None, checked when all are; text for a key that is not text is
    read as TOML.

    Raises ConfigError for an unknown key, or values that are not valid in the file either.
    """

    faults: list[Fault] = []
    for key, value in values.items():
        if value is None:
            continue
        try:
            if key in settings.removed:
                _fail((), _removed_sentence(settings, key))
            settings = _replaced(settings, key.split("."), (), value)
        except _Faults as wrong:
            faults += wrong.faults

    try:
        if faults:
            raise _Faults(faults)
        _check_together(settings, None)
    except _Faults as wrong:
        raise ConfigError("\n".join(f"{COMMAND_LINE}: {sentence}" for _, sentence in wrong.faults)) from None

    return settings


def assigned(
    settings: Settings,
    assignments: Sequence[str],
    options: Mapping[str, object] | None = None,
) -> Settings:
    """`overridden` for the `KEY=VALUE` of a command line, which replace those of `options`. Raises ConfigError."""
    values = dict(options or {})
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not key.strip() or not equals:
            raise ConfigError(
                f"{COMMAND_LINE}: `--set {assignment}` must be KEY=VALUE, for example daemon.log_level=debug."
            )
        values[key.strip()] = value.strip()

    return overridden(settings, values)


def _replaced(table: Table, names: Sequence[str], above: tuple[str, ...], value: object) -> Table:
    """A copy of the table with the key `names` inside of it replaced; `above` is the table's own."""
    name = names[0]
    path = (*above, names[0])
    kind = _field_types(type(table)).get(name)
    if kind is None:
        _fail(
            path,
            _unknown_sentence(_dotted((*above, *names)), name, list(_field_types(type(table)))),
        )
    if names[1:]:
        if not _table(kind):
            _fail(path, _unknown_sentence(_dotted((*above, *names)), names[1], []))
        inner: Any = _replaced(getattr(table, name), names[1:], path, value)
    else:
        inner = _part(kind, _from_command_line(kind, value), path)
    return msgspec.structs.replace(table, **{name: inner})


def allowed(kind: Any) -> str:
    """The allowed values of a type, as text after "must be"."""
    return _words(inspect.type_info(kind))


def find_line(text: str, key: tuple[str, ...]) -> int | None:
    """Line (from 1) of the statement that first defines `key` in valid TOML; None if it is not defined.

    tomllib keeps no positions. A statement ends at the first line up to which the text parses, and begins after the
    last such line before: so parsing growing parts finds any key of any notation. Quadratic, but only after a mistake.
    """
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines(), which breaks at other characters too
    complete = 0
    for count in range(1, len(lines) + 1):
        try:
            table: object = _toml("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        for name in key:
            table = _inside(table, name)
        if table is not None:
            return complete + 1
        complete = count

    return None


def _toml(text: str) -> dict[str, Any]:
    """Raises TOMLDecodeError, also for what exceeds a limit of Python."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError):
        raise tomllib.TOMLDecodeError("a number is too long, or values are nested too deeply") from None


def _fail(path: tuple[str, ...], sentence: str) -> NoReturn:
    raise _Faults([(path, sentence)])


def _without_removed(schema: type[Section], table: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The tables without settings of earlier versions that have their default of then, and the names of these.

    Raises _Faults for those with another value.
    """
    kept = {name: dict(value) if isinstance(value, dict) else value for name, value in table.items()}
    ignored: list[str] = []
    faults: list[Fault] = []
    for key, removed in schema.removed.items():
        name, _, leaf = key.partition(".")
        inside = kept.get(name)
        if not isinstance(inside, dict) or leaf not in inside:
            continue
        if inside.pop(leaf) in removed.defaults:
            ignored.append(key)
            if not inside and name not in _field_types(schema):
                del kept[name]
        else:
            faults.append(((name, leaf), _removed_sentence(schema, key)))

    if faults:
        try:
            _build(schema, kept, ())
        except _Faults as wrong:
            faults += wrong.faults
        raise _Faults(faults)

    return kept, ignored


def _check_together(settings: Section, table: object) -> None:
    """Raises _Faults for values that exclude each other; `table`: those that a file gives, None if all are given."""
    faults: list[Fault] = []
    for key, must in settings.conflicts():
        path = tuple(key.split("."))
        value: Any = settings
        given = table
        for name in path:
            if isinstance(value, tuple):
                value = value[int(name)]
            else:
                value = getattr(value, name)
            given = _inside(given, name)

        if given is None and table is not None:
            default = " (the default)"
        else:
            default = ""
        shown = _shown(msgspec.to_builtins(value))
        faults.append((path, f"`{_dotted(path)}` is {shown}{default}, but must be {must}."))

    if faults:
        raise _Faults(faults)


def _removed_sentence(schema: Section | type[Section], key: str) -> str:
    return f"`{key}` is no longer a setting; {schema.removed[key].instead}"


def _build(schema: type[Table], table: Mapping[str, Any], path: tuple[str, ...]) -> Table:
    """A table of keys as a struct. Raises _Faults with all that is wrong inside of it."""
    types = _field_types(schema)
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, value in table.items():
        inside = (*path, name)
        try:
            if name not in types:
                _fail(inside, _unknown_sentence(_dotted(inside), name, list(types)))
            values[name] = _part(types[name], value, inside)
        except _Faults as wrong:
            faults += wrong.faults

    # A key that is unknown may be a required one, misspelt.
    if all(name in types for name in table):
        for field in msgspec.structs.fields(schema):
            if field.required and field.encode_name not in table:
                missing = _dotted((*path, field.encode_name))
                faults.append(
                    (
                        path,
                        f"`{missing}` is missing, but must be there: {allowed(field.type)}.",
                    )
                )

    if faults:
        raise _Faults(faults)
    return schema(**values)


def _part(kind: Any, value: object, path: tuple[str, ...]) -> Any:
    """One value of a table: a key's, or a table, or an array of tables."""
    if section := _table(kind):
        if not isinstance(value, dict):
            _fail(
                path,
                f"`{_dotted(path)}` is {_shown(value)}, but must be a table of keys.",
            )
        return _build(section, value, path)
    if section := _array(kind):
        if not isinstance(value, list | tuple) or not all(isinstance(item, dict) for item in value):
            _fail(
                path,
                f"`{_dotted(path)}` must be tables, each under [[{_dotted(path)}]].",
            )
        return tuple(_build(section, item, (*path, str(number))) for number, item in enumerate(value))

    return _value(kind, value, path)


def _value(kind: Any, value: object, path: tuple[str, ...]) -> Any:
    info = inspect.type_info(kind)
    shown = "(not shown)" if _extra(info).get("hidden") else _shown(value)
    try:
        result = msgspec.convert(value, kind)
        _check(info, result)
    except ValueError as error:
        if isinstance(error, msgspec.ValidationError):
            why = ""
        else:
            why = f" ({error})"
        _fail(path, f"`{_dotted(path)}` is {shown}, but must be {allowed(kind)}{why}.")

    return result


def _check(kind: inspect.Type, value: Any) -> None:
    """Calls the type's own check, and of a list that of each item. Raises ValueError."""
    if check := _extra(kind).get("check"):
        check(value)
    if isinstance(kind, inspect.VarTupleType):
        for item in value:
            _check(kind.item_type, item)


def _words(kind: inspect.Type) -> str:
    if words := _extra(kind).get("allowed"):
        return str(words)

    match kind:
        case inspect.Metadata():
            return _words(kind.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=int(low), le=int(high)):
            return f"a whole number from {low} to {high}"
        case inspect.FloatType(ge=int() | float() as low, le=int() | float() as high):
            return f"a number from {low:g} to {high:g}"
        case inspect.LiteralType(values=values):
            quoted = [json.dumps(value) for value in values]
            return " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
        case inspect.StrType(max_length=longest):
            if longest:
                return f"text of at most {longest} characters"
            return "text"
        case inspect.UnionType(types=types):
            return " or ".join(map(_words, types))
        case inspect.VarTupleType(item_type=item):
            return f"a list, each item {_words(item)}"
    raise TypeError(f"a configuration key cannot have the type {kind}; numbers need both bounds")


def _extra(kind: inspect.Type) -> Mapping[str, Any]:
    if isinstance(kind, inspect.Metadata):
        return kind.extra or {}
    return {}


def _field_types(schema: type[msgspec.Struct]) -> dict[str, Any]:
    fields = msgspec.structs.fields(schema)
    return {field.encode_name: field.type for field in fields if not _extra(inspect.type_info(field.type)).get("fixed")}


def _table(kind: Any) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return None


def _array(kind: Any) -> type[msgspec.Struct] | None:
    """The tables' type, if a field is an array of them."""
    if get_origin(kind) is tuple:
        return _table(get_args(kind)[0])
    return None


def _inside(container: object, name: str) -> object:
    """A table's value under a key, or an array's under a number; None if there is none."""
    if isinstance(container, Mapping):
        return container.get(name)
    if isinstance(container, list | tuple) and name.isdigit() and int(name) < len(container):
        return container[int(name)]
    return None


def _dotted(path: Sequence[str]) -> str:
    """A key as messages show it: `link.port`, `endpoints[0].name`."""
    return "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in path).removeprefix(".")


def _from_command_line(kind: Any, value: object) -> object:
    info = inspect.type_info(kind)
    plain = info.type if isinstance(info, inspect.Metadata) else info
    if not isinstance(value, str) or isinstance(plain, inspect.StrType | inspect.LiteralType):
        return value

    try:
        return _toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value  # the following check reports what it must be


def _unknown_sentence(key: str, name: str, known: list[str]) -> str:
    hint = "".join(f"did you mean `{close}`? A" for close in difflib.get_close_matches(name, known, n=1)) or "a"
    return f"unknown key `{key}`; {hint}llowed here: {', '.join(known) or 'no further keys'}."


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=True, default=str)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        text = "a number of thousands of digits"
    if len(text) <= _SHOWN:
        return text
    return text[:_SHOWN] + "…"


def _syntax_sentence(message: str, text: str, where: str) -> str:
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)\Z", message)
    what = message[: place.start()] if place else message
    line = place[1] if place and place[1] else text.count("\n") + 1
    column = f" at column {place[2]}" if place and place[2] else ""
    if column and what == "Invalid value":
        hint = " (text stands in quotes)"
    else:
        hint = ""
    return f"{where}, line {line}: this is not TOML{column}: {what[:1].lower()}{what[1:]}{hint}."
