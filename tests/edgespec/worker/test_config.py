"""The worker's configuration: what it accepts and how it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.core.errors import ConfigError
from edgespec.shared.settings import override, parse
from edgespec.worker.config import WorkerSettings, load


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[draft]\nmodel = "auto:best"', '"auto:quantised", "auto:dropped" or a path (no such automatic model)'),
        ('[draft]\nmodel = ""', '"auto:quantised", "auto:dropped" or a path'),
        ("[owner]\nidle_s = -0.1", "`owner.idle_s` is -0.1, but must be a number from 0 to 86400"),
        ("[owner]\nidle_s = nan", "a number from 0 to 86400"),
        ("[draft]\nrequests = 65", "a whole number from 1 to 64"),
        ('[owner]\nsigns = ["mouse"]', 'a list, each item "battery", "cpu", "gpu", '),
        ('[gateway]\naddress = "ws://host:1"', "the link to a gateway always uses TLS"),
        ('[gateway]\naddress = "host:99999"', "a port is a whole number from 1 to 65535"),
        ('[daemon]\nname = "a\\u001b[2J"', "at most 64 letters"),
        ('[daemon]\nstate_dir = "keys"', "a path that begins with / or ~"),
        ("[daemon]\ncpu = [-1]", "a list, each item a whole number from 0 to 4095"),
        ('[daemon]\nlog_level = "trace"', '"debug", "error", "info" or "warning"'),
    ],
)
def test_a_wrong_value_is_refused_with_its_line_and_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, WorkerSettings, "worker.toml")
    assert str(error.value).startswith("worker.toml, line 2: ")
    assert says in str(error.value)


@pytest.mark.parametrize("address", ["", "host", "10.0.0.1:7443", "wss://[fd00::2]:7443/link", "fd00::2"])
def test_any_usual_way_to_write_an_address_is_taken(address: str) -> None:
    assert override(WorkerSettings(), "gateway.address", address).gateway.address == address


def test_without_a_file_the_defaults_hold_but_a_named_file_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load() == WorkerSettings()
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "edgespec" / "worker.toml")
    (tmp_path / "edgespec").mkdir()
    (tmp_path / "edgespec" / "worker.toml").write_text("[draft]\nthreads = 3")
    assert load().draft.threads == 3
