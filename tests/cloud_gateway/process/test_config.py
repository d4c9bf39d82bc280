"""The gateway's configuration: accepted values, values that exclude each other, and the places of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_gateway.core.policies.registry import NAMES
from cloud_gateway.process.config import GatewaySettings, load
from edgespec.core.errors import ConfigError
from edgespec.shared.settings import override, parse


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[target]\ndtype = "int8"', '`target.dtype` is "int8", but must be "auto", "bfloat16" or "float32".'),
        ('[target]\ndevice = "gpu"', '"auto", "cpu", "cuda" or "cuda:N"'),
        ('[target]\ndevice = "cuda:0\\n"', '"auto", "cpu", "cuda" or "cuda:N"'),
        ('[policy]\nname = "magic"', f'`policy.name` is "magic", but must be "{NAMES[0]}" or "'),
        ("[policy]\nk = 17", "a whole number from 1 to 16"),
        ("[policy]\nphi = inf", 'must be "learnt" or a number from 0 to 100.'),
        ("[policy]\nverify_nodes = 0", "a whole number from 1 to 512"),
        ("[api]\nmax_tokens = 5000", "at most `api.max_tokens_limit`, which is 4096"),
        ("[target]\nkv_tokens = 4112", "0, or at least 4113: `target.context` and the candidates of a pass"),
        ("[api]\nport = 7443", "another port than that of [link], [api] and [metrics]"),
        ("[local_draft]\ncpu = [1]", '`local_draft.mode` is "in-turn"'),
        ('[local_draft]\ncpu = [1]\nmode = "async-local"\n[daemon]\ncpu = [0, 1]', "which has [1] too"),
        ("[link]\nmodns = true", "unknown key `link.modns`; did you mean `mdns`?"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line_and_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, GatewaySettings, "gateway.toml")
    assert str(error.value).startswith("gateway.toml, line 2: ")
    assert says in str(error.value)


def test_a_default_that_clashes_with_the_file_is_called_a_default() -> None:
    with pytest.raises(ConfigError) as error:
        parse("[link]\nport = 8080", GatewaySettings, "gateway.toml")
    assert str(error.value).startswith("gateway.toml: `api.port` is 8080 (the default), but must be another port")


def test_ports_left_to_the_system_do_not_clash() -> None:
    settings = parse("link.port = 0\napi.port = 0\nmetrics.port = 0", GatewaySettings, "x")
    assert override(settings, "api.host", "::1").api.host == "::1"


def test_without_a_file_the_defaults_hold_but_a_named_file_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load() == GatewaySettings()
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "edgespec" / "gateway.toml")
    (tmp_path / "edgespec").mkdir()
    (tmp_path / "edgespec" / "gateway.toml").write_text("[policy]\nk = 3")
    assert load().policy.k == 3
