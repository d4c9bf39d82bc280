"""The port of the metrics: its setting, its option, and how it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_gateway.__main__ import build_parser
from cloud_gateway.parts import all_parts
from cloud_gateway.parts.prometheus import PART, MetricsSection
from cloud_gateway.process import config, views
from edgespec.core.errors import ConfigError
from edgespec.shared.settings import parse

SETTINGS = config.schema(all_parts())


def test_its_port_is_9464_or_what_the_file_or_the_option_says(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[metrics]\nport = 1\n")
    parser = build_parser()
    assert SETTINGS().of(MetricsSection).port == 9464
    assert config.given(parser.parse_args(["serve", "--config", str(file)])).of(MetricsSection).port == 1
    arguments = parser.parse_args(["serve", "--config", str(file), "--metrics-port", "0"])
    assert config.given(arguments).of(MetricsSection).port == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[metrics]\nport = 7443", "`metrics.port` is 7443, but must be another port than that of [link], [api] and"),
        ("[api]\nport = 9464", "must be another port than that of [link], [api] and [metrics]"),
        ("[metrics]\nhost = 1", "`metrics.host` is no longer a setting; the figures are served at 127.0.0.1."),
    ],
)
def test_a_port_of_another_listener_and_an_old_key_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, SETTINGS, "x.toml")
    assert says in str(error.value)


def test_the_status_shows_where_the_figures_are_served() -> None:
    status = {
        "uptime_s": 1, "pid": 1, "version": "1", "state": "serving", "model": "m", "api": "a", "link": "l",
        "metrics": "http://127.0.0.1:9464", "policy": "adaptive", "workers_linked": 1, "workers_paused": 0,
        "workers_quarantined": 0, "requests_active": 1, "requests_queued": 0, "requests": 4, "rounds": 0, "tokens": 0,
        "local_draft_passes": 0, "drafted": {}, "accepted": {}, "frames": {}, "refused": {},
    }  # fmt: skip
    assert "metrics     http://127.0.0.1:9464/metrics" in views.text(status, [PART]).splitlines()
    assert "metrics" not in views.text(status)
