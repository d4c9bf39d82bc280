"""A missing package is named with the extra that brings it, and the shipped files can be printed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

from cloud_gateway import __main__ as gateway
from edgespec import __main__ as worker
from edgespec.core.errors import EdgespecError
from edgespec.shared import command, installed
from edgespec.shared.installed import SHIPPED, missing_package
from edgespec.shared.shipped import commented
from tests.support.verbs import needs_verb

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requirements of pyproject.toml as it is now, not as when the checkout was installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [f'{package}; extra == "{extra}"' for extra, packages in extras.items() for package in packages]
    monkeypatch.setattr(installed, "requires", lambda _: lines)


@pytest.mark.parametrize(
    ("module", "program", "package", "extra"),
    [
        ("llama_cpp", "edgespec", "llama-cpp-python", "worker"),
        ("llama_cpp._logger", "cloud-gateway", "llama-cpp-python", "gateway"),
        ("prometheus_client", "edgespec", "prometheus-client", "gateway"),
        ("dbus_fast", "edgespec", "dbus-fast", "worker"),
        ("torch", "cloud-gateway", "torch", "torch"),
        ("safetensors.torch", "cloud-gateway", "safetensors", "torch"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    module: str, program: str, package: str, extra: str
) -> None:
    error = missing_package(module, program)
    assert error is not None and error.exit_code == 69
    assert f"The package {package} is not installed" in str(error)
    assert f'run `pip install "edgespec[{extra}]"` there.' in str(error)


@pytest.mark.parametrize("module", ["edgespec.nothing", "no_such_thing", "", None])
def test_another_module_that_is_missing_is_no_missing_extra(module: str | None) -> None:
    assert missing_package(module, "") is None


def test_every_package_of_an_extra_is_found_by_its_module() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = {"llama-cpp-python": "llama_cpp", "nvidia-ml-py": "pynvml"}
    for extra in ("worker", "gateway", "torch", "gpu"):
        for requirement in extras[extra]:
            package = requirement.split(">")[0]
            assert missing_package(modules.get(package, package.replace("-", "_")), "") is not None, package


@needs_verb("models")
def test_a_command_without_its_extra_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert worker.main(["models", "fetch", "owner/name"]) == 69
    said = capsys.readouterr().err
    assert said.startswith("edgespec: The package huggingface-hub is not installed") and "fault of this" not in said


def test_the_demo_names_the_extra_that_its_gateway_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "aiohttp" else found(name))
    assert worker.main(["demo"]) == 69
    assert 'run `pip install "edgespec[gateway]"` there.' in capsys.readouterr().err


def test_a_module_of_nobody_stays_a_fault_of_this_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "_version", lambda _: importlib.import_module("no_such_module"))
    assert command.run("edgespec", worker.build_parser, ["version"]) == EdgespecError.exit_code
    assert "A fault of this program ended it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "arguments", "file"),
    [(worker.main, ["config"], "worker.toml"), (gateway.main, ["config"], "gateway.toml")],
)
def test_a_shipped_configuration_is_printed_with_all_its_lines(
    main: object, arguments: list[str], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(main) and main(arguments) == 0
    printed = capsys.readouterr().out

    # Every line of the file, in its order, with its keys commented out; the parts' settings stand between them.
    lines = iter(printed.splitlines())
    for line in commented((ROOT / "configs" / file).read_text()).splitlines():
        assert line in lines, line


def test_all_configurations_ship() -> None:
    configs = {path.name for path in (ROOT / "configs").glob("*.toml")}
    assert {path.name for path in SHIPPED.iterdir()} == configs
