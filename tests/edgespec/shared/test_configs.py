"""The configurations of both programs: accepted values, what excludes each other, and the files that ship."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud_gateway import parts as gateway_parts
from cloud_gateway.core.policies.registry import NAMES
from cloud_gateway.process import config as gateway
from edgespec import parts as worker_parts
from edgespec.core.errors import ConfigError
from edgespec.shared.part import Part
from edgespec.shared.settings import Section, find_line, overridden, parse
from edgespec.shared.shipped import example
from edgespec.worker import config as worker
from tests.support.setting_keys import keys

WORKER_SETTINGS = worker.schema(worker_parts.all_parts())
GATEWAY_SETTINGS = gateway.schema(gateway_parts.all_parts())
WORKER: list[tuple[str, str]] = [
    ('[draft]\nmodel = "auto:best"', '"auto:quantised", "auto:requantised", "auto:dropped" or a path (no'),
    ('[draft]\nmodel = ""', '"auto:dropped" or a path.'),
    ('[gateway]\naddress = "ws://host:1"', "the link to a gateway always uses TLS"),
    ('[gateway]\naddress = "host:99999"', "a port is a whole number from 1 to 65535"),
    ('[daemon]\nname = "a\\u001b[2J"', "at most 64 letters"),
    ('[daemon]\nstate_dir = "keys"', "a path that begins with / or ~"),
    ("[draft]\ntheta = 0.7", "`draft.theta` is no longer a setting; Algorithm 2 uses 0.5 nats."),
]
GATEWAY: list[tuple[str, str]] = [
    ('[policy]\nname = "magic"', f'`policy.name` is "magic", but must be "{NAMES[0]}" or "'),
    ("[policy]\nphi = inf", 'must be "learnt" or a number from 0 to 100.'),
    ("[api]\nmax_tokens = 5000", "at most `api.max_tokens_limit`, which is 4096"),
    ("[target]\nkv_tokens = 4112", "0, or at least 4113: `target.context` and the candidates of a pass"),
    ("[api]\nport = 7443", "another port than that of [link]"),
    ("[target]\nprefix_cache = false", "is no longer a setting; `api.prefix_cache` holds for the target,"),
    ("[link]\nprot = 7443", "unknown key `link.prot`; did you mean `port`?"),
]


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [*((WORKER_SETTINGS, *one) for one in WORKER), *((GATEWAY_SETTINGS, *one) for one in GATEWAY)],
)
def test_a_wrong_value_is_refused_with_its_line_and_what_is_allowed(kind: Any, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, kind, "x.toml")
    assert str(error.value).startswith("x.toml, line 2: ")
    assert says in str(error.value)


@pytest.mark.parametrize("address", ["", "host", "10.0.0.1:7443", "wss://[fd00::2]:7443/link", "fd00::2"])
def test_any_usual_way_to_write_an_address_is_taken(address: str) -> None:
    assert overridden(WORKER_SETTINGS(), {"gateway.address": address}).gateway.address == address


def test_a_default_that_clashes_with_the_file_is_called_a_default() -> None:
    with pytest.raises(ConfigError) as error:
        parse("[link]\nport = 8080", GATEWAY_SETTINGS, "gateway.toml")
    assert str(error.value).startswith("gateway.toml: `api.port` is 8080 (the default), but must be another port")


def test_ports_left_to_the_system_do_not_clash() -> None:
    settings = parse("link.port = 0\napi.port = 0", GATEWAY_SETTINGS, "x")
    assert overridden(settings, {"api.host": "::1"}).api.host == "::1"


def load_gateway(path: Path | None = None) -> gateway.GatewaySettings:
    return gateway.load(path, ())


@pytest.mark.parametrize(
    ("load_settings", "defaults", "name"),
    [
        (worker.load, worker.WorkerSettings(), "worker.toml"),
        (load_gateway, gateway.GatewaySettings(), "gateway.toml"),
    ],
)
def test_without_a_file_the_defaults_hold_but_a_named_file_must_exist(
    load_settings: Any, defaults: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert msgspec.structs.asdict(load_settings()) == msgspec.structs.asdict(defaults)

    path = tmp_path / "edgespec" / name
    with pytest.raises(ConfigError, match="there is no such file"):
        load_settings(path)

    path.parent.mkdir()
    path.write_text('[daemon]\nlog_level = "error"')
    assert load_settings().daemon.log_level == "error"


CONFIGS = Path(__file__).parents[3] / "configs"
SHIPPED: list[tuple[str, type[Section]]] = [("worker.toml", WORKER_SETTINGS), ("gateway.toml", GATEWAY_SETTINGS)]
PAIRS = [(name, key, *given) for name, schema in SHIPPED for key, given in keys(schema).items()]


PARTS_OF: Mapping[str, Sequence[Part]] = {
    "worker.toml": worker_parts.all_parts(),
    "gateway.toml": gateway_parts.all_parts(),
}


@cache
def shipped_with_parts(name: str) -> str:
    """The text that the verb `config` prints."""
    return example((CONFIGS / name).read_text(), PARTS_OF[name])


@cache
def shipped(name: str) -> dict[str, object]:
    return tomllib.loads(shipped_with_parts(name))


def in_file(name: str, key: str) -> object:
    value: object = shipped(name)
    for part in key.split("."):
        value = value[part]  # type: ignore[index]
    return value


def comment(name: str, key: str) -> str:
    """The comment lines directly above a key."""
    text = shipped_with_parts(name)
    line = find_line(text, tuple(key.split(".")))
    assert line is not None
    above: list[str] = []
    for row in reversed(text.split("\n")[: line - 1]):
        if not row.startswith("#"):
            break
        above.insert(0, row.lstrip("# "))
    return " ".join(above)


@pytest.mark.parametrize(("name", "schema"), SHIPPED)
def test_a_shipped_file_loads_and_is_what_the_code_takes_without_one(name: str, schema: type[Section]) -> None:
    assert parse(shipped_with_parts(name), schema, name) == schema()


def test_every_key_stands_in_the_shipped_file_with_its_default() -> None:
    for name, key, default, _ in PAIRS:
        if default is msgspec.NODEFAULT:
            assert in_file(name, key), key
        else:
            assert in_file(name, key) == (list(default) if isinstance(default, tuple) else default), key


def test_every_key_has_a_comment_that_names_what_is_allowed() -> None:
    for name, key, _, words in PAIRS:
        said = comment(name, key)
        assert len(said) > 20, key
        for must in re.findall(r'"[^"]*"|\d+|true|false', words):
            assert must in said, f"the comment on {key} does not say {must}"


@pytest.mark.parametrize(("name", "schema"), SHIPPED)
def test_no_line_of_a_shipped_file_is_longer_than_code_may_be(name: str, schema: type[Section]) -> None:
    assert max(map(len, shipped_with_parts(name).split("\n"))) <= 120
