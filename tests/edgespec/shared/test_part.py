"""Settings composed of a program's tables and those of its parts, and parts of other distributions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloud_gateway import __main__ as gateway
from edgespec import __main__ as worker
from edgespec.core.errors import ConfigError
from edgespec.shared.part import Part, Settings, brought, composed
from edgespec.shared.settings import Removed, Section, assigned, parse
from edgespec.shared.shipped import commented, example


class Listening(Section, frozen=True, kw_only=True):
    port: int = 80


class Core(Settings, frozen=True, kw_only=True):
    api: Listening = Listening()


class Page(Section, frozen=True, kw_only=True):
    page: bool = False


class Log(Section, frozen=True, kw_only=True):
    keep: int = 4


def page_needs_a_port(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.of(Page).page and settings.of(Listening).port == 0:
        yield "api.page", "false if `api.port` is 0"


PAGE = Part("page", {"api": Page}, check=page_needs_a_port)
LOG = Part("log", {"log": Log}, removed={"log.size": Removed("a file has 4 MiB.", (4096,))})


def test_a_parts_settings_are_read_by_their_type() -> None:
    settings = parse("api.page = true\nlog.keep = 7", composed(Core, [PAGE, LOG]), "x")

    assert settings.of(Log) == Log(keep=7)
    assert settings.of(Page) == Page(page=True)
    assert settings.of(Listening).port == settings.api.port == 80


def test_without_its_part_a_section_has_its_defaults() -> None:
    assert Core().of(Log) == Log()


def test_without_its_part_a_key_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown key `log`; allowed here: api"):
        parse("log.keep = 7", composed(Core, [PAGE]), "x")


def test_a_part_refuses_values_that_are_valid_alone() -> None:
    schema = composed(Core, [PAGE])
    with pytest.raises(ConfigError, match="`api.page` is true, but must be false if `api.port` is 0"):
        parse("[api]\nport = 0\npage = true", schema, "x")
    with pytest.raises(ConfigError, match=r"^Command line: `api.page` is true"):
        assigned(schema(), ["api.page=true", "api.port=0"])


def test_a_removed_setting_of_a_part_says_what_holds_instead() -> None:
    with pytest.raises(ConfigError, match="`log.size` is no longer a setting; a file has 4 MiB"):
        parse("log.size = 1", composed(Core, [LOG]), "x")


def test_two_parts_with_the_same_key_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two parts have the key api\.page"):
        composed(Core, [PAGE, Part("again", {"api": type("Again", (Page,), {}, frozen=True)})])


def test_the_keys_of_parts_join_the_tables_of_the_shipped_file(tmp_path: Path) -> None:
    page = tmp_path / "page.toml"
    page.write_text("[api]\n# Whether there is one.\npage = false\n")
    log = tmp_path / "log.toml"
    log.write_text("[log]\n# Files.\nkeep = 4\n")
    parts = [Part("page", example=page), PAGE, Part("log", example=log)]

    core = "# A program.\n\n[api]\n# The port.\nport = 80\n\n[more]\nx = 1\n"
    printed = example(core, parts)

    assert printed == (
        "# A program.\n\n[api]\n# The port.\nport = 80\n# Whether there is one.\npage = false\n\n[more]\nx = 1\n"
        "\n[log]\n# Files.\nkeep = 4\n"
    )
    assert example("[api]\nport = 80\n", parts[:1]) == "[api]\nport = 80\n# Whether there is one.\npage = false\n"


def test_the_printed_configuration_pins_nothing() -> None:
    text = "# A program.\n\n[api]\n# The port.\nport = 80\nhosts = [\n    1,\n]\n"
    printed = commented(text)
    assert printed == "# A program.\n\n[api]\n# The port.\n#port = 80\n#hosts = [\n#    1,\n#]\n"
    assert tomllib.loads(printed) == {"api": {}}
    assert re.sub("^#(?! )", "", printed, flags=re.MULTILINE).replace("#    1", "    1") == text


def test_parts_of_other_distributions_come_by_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        SimpleNamespace(name="b", value="more:PART", load=lambda: PAGE),
        SimpleNamespace(name="a", value="other:PART", load=lambda: LOG),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == "x.parts" else [])
    assert brought("x.parts", Part) == (LOG, PAGE)

    entries.append(SimpleNamespace(name="c", value="wrong:PART", load=lambda: 1))
    with pytest.raises(ConfigError, match=r"The entry point c of x\.parts is no Part: wrong:PART"):
        brought("x.parts", Part)


def test_a_part_that_cannot_be_imported_is_named_with_its_distribution(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load() -> Part:
        raise ImportError("no module named gone")

    broken = SimpleNamespace(name="extra", value="extra:PART", load=load, dist=SimpleNamespace(name="edgespec-extra"))
    monkeypatch.setattr(metadata, "entry_points", lambda group: [broken])
    for main in (worker.main, gateway.main):
        assert main(["version"]) == ConfigError.exit_code
        error = capsys.readouterr().err
        assert "edgespec-extra brings the part extra, which cannot be imported" in error
        assert "ImportError: no module named gone" in error and error.endswith("or uninstall it.\n")
