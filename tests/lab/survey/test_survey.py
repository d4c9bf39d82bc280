"""A whole survey of three local endpoints: what it finds, how it ends, and that it goes on from its last row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.core.errors import ConfigError
from edgespec_lab.survey.config import EndpointSection, RequestSection, ScheduleSection, SurveySettings
from edgespec_lab.survey.runner import Survey, api_key
from edgespec_lab.survey.sample import SampleFile
from tools.doubles.chat_endpoint import ChatEndpoint, Reply, serving

SECRET = "sk-very-secret"


def settings_for(*servers: ChatEndpoint, key: str = "", timeout_s: float = 5.0, **schedule: Any) -> SurveySettings:
    endpoints = tuple(
        EndpointSection(name=f"e{n}", base_url=server.base_url, model="m", region=f"r{n}", api_key_env=key)
        for n, server in enumerate(servers)
    )
    times = {"interval_s": 0.1, "jitter": 0.3, "duration_h": 1.0, **schedule}
    request = RequestSection(source="here", timeout_s=timeout_s)
    return SurveySettings(schedule=ScheduleSection(**times), request=request, endpoints=endpoints)


async def survey(settings: SurveySettings, path: Path, watch: Callable[..., None] = print) -> Any:
    with SampleFile(path) as file:
        return await Survey(settings, file).run(watch)


@pytest.mark.claim("keys-and-prompts-are-in-no-sample")
async def test_keys_and_prompts_are_in_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    server = ChatEndpoint(Reply)
    path = tmp_path / "s.jsonl"
    async with serving(server):
        settings = settings_for(server, key="MY_KEY", count=2)
        await survey(settings, path, watch=lambda _: None)
    assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
    text = path.read_text()
    for private in (SECRET, settings.request.prompt, "127.0.0.1", "MY_KEY"):
        assert private not in text


def test_a_missing_or_unusable_key_is_reported_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = EndpointSection(name="far", base_url="https://x/v1", model="m", api_key_env="sk_pasted_here_by_mistake")
    with pytest.raises(ConfigError) as error:
        api_key(endpoint)
    assert "of endpoint far names is not set" in str(error.value)
    assert "sk_pasted" not in str(error.value)
    monkeypatch.setenv("sk_pasted_here_by_mistake", "sk-a\nHost: evil")
    with pytest.raises(ConfigError, match="characters that no header can carry") as error:
        api_key(endpoint)
    assert "evil" not in str(error.value)
