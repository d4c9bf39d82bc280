"""The survey's configuration: accepted values, refusals that protect endpoints, and secrets that are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from edgespec.core.errors import ConfigError
from edgespec.shared.settings import load, parse
from edgespec_lab.survey.config import SurveySettings

FOLDER = Path(__file__).parents[3] / "lab" / "edgespec_lab" / "survey"
ENDPOINT = '[[endpoints]]\nname = "a"\nbase_url = "https://api.example.com/v1"\nmodel = "m"\n'


def message(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse(text, SurveySettings, "survey.toml")
    assert "\n" not in str(error.value)
    return str(error.value)


def endpoint(**keys: str) -> str:
    values = {"name": "a", "base_url": "https://api.example.com/v1", "model": "m", **keys}
    return "[[endpoints]]\n" + "".join(f'{key} = "{value}"\n' for key, value in values.items())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[schedule]\ninterval_s = 0", "line 2: `schedule.interval_s` is 0, but must be a number from 0.1 to 86400."),
        ("[request]\nmax_tokens = 4096", "a whole number from 1 to 64"),
        ('[request]\nprompt = ""', "text of 1 to 200 characters"),
        ("[endpoints]\nname = 3", "line 1: `endpoints` must be tables, each under [[endpoints]]."),
        (
            '[[endpoints]]\nname = "a"\nmodel = "m"',
            "line 1: `endpoints[0].base_url` is missing, but must be there: an http://",
        ),
        (ENDPOINT + endpoint(nmae="b"), "line 9: unknown key `endpoints[1].nmae`; did you mean `name`?"),
        (ENDPOINT + endpoint(), 'line 6: `endpoints[1].name` is "a", but must be another name than those before it.'),
        (endpoint(base_url="ftp://x/v1"), "it does not begin with http:// or https:// and a host"),
        (endpoint(base_url="https://x/v1?key=1"), "it has a query, a fragment or a space"),
        (endpoint(base_url="https://x/v1/chat/completions"), "/chat/completions is added to it"),
        (endpoint(limit_field="tokens"), '"max_completion_tokens" or "max_tokens"'),
        (endpoint(ca_file="ca.pem"), "a path that begins with / or ~"),
        (endpoint(name="a\\u001b[2J"), "letters, digits, spaces"),
        (endpoint(base_url="http://api.example.com/v1", api_key_env="KEY"), "https: its API key would cross public"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_what_is_allowed(text: str, says: str) -> None:
    assert says in message(text)
    assert message(text).startswith("survey.toml, line ")


@pytest.mark.claim("keys-and-prompts-are-in-no-sample")
@pytest.mark.parametrize(
    "text",
    [
        endpoint(api_key_env="sk-live-abc123"),
        endpoint(base_url="https://user:sk-live-abc123@api.example.com/v1"),
        endpoint(api_key="sk-live-abc123"),
        '[endpoints]\napi_key_env = "sk-live-abc123"',
    ],
)
def test_a_key_in_the_file_by_mistake_is_refused_and_not_shown(text: str) -> None:
    assert "sk-live" not in message(text)
    assert "abc123" not in message(text)


@pytest.mark.claim("rates-that-would-load-a-host-are-refused")
def test_rates_that_would_load_a_host_are_refused() -> None:
    assert "at least 10, or the survey would be a load on api.example.com" in message(
        f"[schedule]\ninterval_s = 9\n{ENDPOINT}"
    )
    three = ENDPOINT + endpoint(name="b") + endpoint(name="c", base_url="https://other.example.com/v1")
    assert "at least 20" in message(f"[schedule]\ninterval_s = 19\n{three}")
    parse(f"[schedule]\ninterval_s = 20\n{three}", SurveySettings, "x")
    mine = endpoint(base_url="http://127.0.0.1:8080/v1") + endpoint(name="b", base_url="http://[::1]:8080/v1")
    parse(f"[schedule]\ninterval_s = 0.1\n{mine}", SurveySettings, "x")


def test_the_example_has_every_default() -> None:
    example = load(FOLDER / "survey.toml", SurveySettings)
    assert len(example.endpoints) == 1 and replace(example, endpoints=()) == SurveySettings()
