"""Configuration files: each mistake gives one sentence with file, line, key and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import pytest
from msgspec import Meta

from edgespec.core.errors import ConfigError
from edgespec.shared.settings import MAX_FILE_BYTES, Removed, Section, assigned, load, overridden, parse
from tests.support.setting_keys import keys


def even(value: int) -> None:
    if value % 2:
        raise ValueError("it is odd")


class Deep(Section, frozen=True):
    port: Annotated[int, Meta(ge=1, le=65535)] = 1


class Link(Section, frozen=True):
    host: Annotated[str, Meta(max_length=20)] = "localhost"
    port: Annotated[int, Meta(ge=0, le=65535)] = 7443
    mdns: bool = True
    loss: Annotated[float, Meta(ge=0, le=1)] = 0.0
    policy: Literal["plain", "wanspec"] = "plain"
    cores: tuple[Annotated[int, Meta(ge=0, le=63)], ...] = ()
    pairs: Annotated[int, Meta(extra={"allowed": "an even number", "check": even})] = 2
    deep: Deep = Deep()


class Peer(Section, frozen=True):
    name: Annotated[str, Meta(max_length=5)]
    secret: Annotated[str, Meta(max_length=3, extra={"hidden": True})] = ""


class Root(Section, frozen=True):
    link: Link = Link()
    peers: tuple[Peer, ...] = ()
    port: Annotated[int, Meta(ge=1, le=9)] = 5

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.link.port == self.port:
            yield "link.port", "another one than `port`"
        for number, peer in enumerate(self.peers):
            if peer.name == "me":
                yield f"peers.{number}.name", "another one than this machine"


def message(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse(text, Root, "x.toml")
    return str(error.value)


class Renewed(Root, frozen=True):
    removed: ClassVar[Mapping[str, Removed]] = {
        "link.speed": Removed("links have no speed.", (9, 10)),
        "old.name": Removed("it has no name.", ("",)),
    }


def test_all_faults_of_a_file_are_in_one_message_by_line() -> None:
    text = "port = 12\n[link]\nmdns = 1\nspeed = 8\nhots = 2\n"
    with pytest.raises(ConfigError) as error:
        parse(text, Renewed, "x.toml")
    assert [line.partition(", but")[0] for line in str(error.value).splitlines()] == [
        "x.toml, line 1: `port` is 12",
        "x.toml, line 3: `link.mdns` is 1",
        "x.toml, line 4: `link.speed` is no longer a setting; links have no speed.",
        "x.toml, line 5: unknown key `link.hots`; did you mean `host`? Allowed here: "
        + ", ".join(Link.__struct_fields__)
        + ".",
    ]


def test_all_faults_of_a_command_line_are_in_one_message() -> None:
    with pytest.raises(ConfigError) as error:
        assigned(Root(), ["link.port=70000", "port=5", "link.mdns=maybe"])
    assert [line[:31] for line in str(error.value).splitlines()] == [
        "Command line: `link.port` is 70",
        'Command line: `link.mdns` is "m',
    ]


def test_a_removed_setting_with_its_old_default_is_only_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    settings = parse('[link]\nspeed = 10\nport = 1\n[old]\nname = ""\n', Renewed, "x.toml")
    assert settings == Renewed(link=Link(port=1))
    said = "x.toml: these settings of an earlier version have no effect, remove them: `link.speed`, `old.name`."
    assert caplog.messages == [said]


def test_a_right_file_loads_and_what_it_leaves_out_has_its_default(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[link]\nport = 1\nloss = 1\ncores = [0, 1]\npolicy = "wanspec"\n')
    settings = load(file, Root)
    assert settings == Root(link=Link(port=1, loss=1.0, cores=(0, 1), policy="wanspec"))
    assert isinstance(settings.link.loss, float)
    with pytest.raises(AttributeError):
        settings.link.port = 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[link]\nport = 70000", "x.toml, line 2: `link.port` is 70000, but must be a whole number from 0 to 65535."),
        ("[link]\nport = 1.5", "line 2: `link.port` is 1.5, but must be a whole number from 0 to 65535."),
        ('\n\n[link]\nmdns = "yes"', 'line 4: `link.mdns` is "yes", but must be true or false.'),
        ("[link]\nloss = 1.5", "line 2: `link.loss` is 1.5, but must be a number from 0 to 1."),
        ("[link]\nloss = nan", "line 2: `link.loss` is NaN, but must be a number from 0 to 1."),
        ('[link]\npolicy = "fast"', 'line 2: `link.policy` is "fast", but must be "plain" or "wanspec".'),
        ("[link]\ncores = 1", "line 2: `link.cores` is 1, but must be a list, each item a whole number from 0 to 63."),
        (
            "[link]\ncores = [\n0,\n64\n]",
            "line 2: `link.cores` is [0, 64], but must be a list, each item a whole number",
        ),
        ("[link]\nhost = 1979-05-27", 'line 2: `link.host` is "1979-05-27", but must be text of at most 20 char'),
        ('[link]\nhost = "' + "a" * 99 + '"', "… , but must be text of at most 20 characters."),
        ("[link]\npairs = 3", "line 2: `link.pairs` is 3, but must be an even number (it is odd)."),
        ("link = 3", "line 1: `link` is 3, but must be a table of keys."),
        ("[[link]]\nport = 3", "line 1: `link` is "),
        ("[link]\nprot = 1", "line 2: unknown key `link.prot`; did you mean `port`? Allowed here: host, port, mdns,"),
        ("[lnik]\nport = 1", "line 1: unknown key `lnik`; did you mean `link`? Allowed here: link, peers, port."),
        ("[link]\nport = 5", "line 2: `link.port` is 5, but must be another one than `port`."),
        ("[link]\nport = 1\nport = 2", "line 3: this is not TOML: cannot overwrite a value."),
        ('[[peers]]\nname = "a"\n[[peers]]\nname = 3', "line 4: `peers[1].name` is 3, but must be text of at most 5"),
        ('[[peers]]\nname = "a"\n[[peers]]\nnane = "b"', "line 4: unknown key `peers[1].nane`; did you mean `name`?"),
        (
            '[[peers]]\n\n[[peers]]\nname = "b"',
            "line 1: `peers[0].name` is missing, but must be there: text of at most 5",
        ),
        ('[[peers]]\nname = "me"', 'line 2: `peers[0].name` is "me", but must be another one than this machine.'),
        (
            '[[peers]]\nname = "a"\nsecret = "abcd"',
            "line 3: `peers[0].secret` is (not shown), but must be text of at most 3",
        ),
        ("[peers]\nname = 1", "line 1: `peers` must be tables, each under [[peers]]."),
        ("[link\nport = 1", "line 1: this is not TOML at column 6: "),
        ("[link]\npolicy = plain", "line 2: this is not TOML at column 10: invalid value (text stands in quotes)."),
    ],
)
def test_each_mistake_names_file_line_key_and_what_is_allowed(text: str, says: str) -> None:
    sentence = message(text)
    assert sentence.startswith("x.toml, line ")
    assert says.replace("… ,", "…,") in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("port = 1\n[link]\nport = 70000", 3),
        ("[link.deep]\nport = 1\n[link]\nport = 70000", 4),
        ("[link]\nmdns = true\n# port = 1\nport = 70000", 4),
        ('[link]\nhost = """\nport = 1\n"""\nport = 70000', 5),
        ("link.mdns = true\nlink.port = 70000", 2),
        ("\nlink = {mdns = true, port = 70000}", 2),
        ('["link"]\n"port" = 70000', 2),
        ('[link]\n"po\\u0072t" = 70000', 2),
        ("[ link ] # port\nmdns = true\r\nport = 70000\r\n", 3),
        ("# a\u2028b\n[link]\nport = 70000", 3),
    ],
)
def test_the_line_is_right_in_every_notation(text: str, line: int) -> None:
    assert message(text).startswith(f"x.toml, line {line}: `link.port` is 70000")


def test_a_missing_a_binary_and_a_too_long_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file; name an existing one with --config"):
        load(tmp_path / "none.toml", Root)
    with pytest.raises(ConfigError, match="cannot be read \\(Is a directory\\)"):
        load(tmp_path, Root)
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"port = 1\n\xff\xfe")
    with pytest.raises(ConfigError, match="line 2: the file is not UTF-8 text"):
        load(binary, Root)
    binary.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="too many for a configuration"):
        load(binary, Root)


def test_a_file_that_may_not_be_read_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "secret.toml"
    file.write_text("port = 1")
    file.chmod(0)
    tmp_path.chmod(0o755)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match="cannot be read \\(Permission denied\\)"):
            load(file, Root)
    finally:
        if was_root:
            os.seteuid(0)


def test_the_command_line_may_replace_any_key_under_the_same_rules() -> None:
    settings = Root()
    assert overridden(settings, {"link.port": 1}).link.port == 1
    assert overridden(settings, {"link.port": "1"}).link.port == 1
    assert overridden(settings, {"link.mdns": "false"}).link.mdns is False
    assert overridden(settings, {"link.cores": "[1, 2]"}).link.cores == (1, 2)
    assert overridden(settings, {"link.host": "1"}).link.host == "1"
    assert overridden(settings, {"link.policy": "wanspec"}).link.policy == "wanspec"
    assert overridden(settings, {"link.deep.port": 9}).link.deep.port == 9
    assert settings == Root()
    for key, value, says in [
        ("link.port", "70000", "Command line: `link.port` is 70000, but must be a whole number from 0 to 65535."),
        ("link.port", "x", 'Command line: `link.port` is "x", but must be a whole number'),
        ("link.port", 5, "Command line: `link.port` is 5, but must be another one than `port`."),
        ("link.prot", 1, "Command line: unknown key `link.prot`; did you mean `port`?"),
        ("link.port.x", 1, "Command line: unknown key `link.port.x`; allowed here: no further keys."),
        ("link", 1, "must be a table of keys"),
        ("", 1, "unknown key ``"),
    ]:
        with pytest.raises(ConfigError) as error:
            overridden(settings, {key: value})
        assert says in str(error.value)


@pytest.mark.parametrize("order", [1, -1])
def test_assignments_are_checked_together_in_any_order(order: int) -> None:
    """5 is the value of `port` before, which `link.port` must differ from."""
    found = assigned(Root(), ["link.port=5", "port=6"][::order])
    assert (found.link.port, found.port) == (5, 6)
    with pytest.raises(ConfigError, match="must be another one than `port`"):
        assigned(Root(), ["link.port=6", "port=6"][::order])


def test_assignments_replace_options_and_earlier_ones() -> None:
    assert assigned(Root(), ["port=6", "port=7"], {"port": 8, "link.port": None}).port == 7
    assert assigned(Root(), [], {"port": 8}).port == 8


def test_arrays_of_tables_load_and_survive_an_override() -> None:
    settings = parse('[[peers]]\nname = "a"\n[[peers]]\nname = "b"\nsecret = "x"', Root, "x")
    assert settings.peers == (Peer(name="a"), Peer(name="b", secret="x"))
    assert overridden(settings, {"link.port": 1}).peers == settings.peers


def test_keys_lists_every_key_with_default_and_words() -> None:
    listed = keys(Root)
    assert list(listed)[:2] == ["link.host", "link.port"]
    assert listed["link.deep.port"] == (1, "a whole number from 1 to 65535")
    assert listed["peers.name"] == (msgspec.NODEFAULT, "text of at most 5 characters")
    assert listed["link.cores"] == ((), "a list, each item a whole number from 0 to 63")
