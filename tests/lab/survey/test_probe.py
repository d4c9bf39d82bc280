"""One request: its times are those that the endpoint really took, and every failure has its name."""

from __future__ import annotations

from statistics import median

import pytest
from aiohttp import web

from edgespec_lab.survey.config import EndpointSection, RequestSection
from edgespec_lab.survey.probe import Prober
from edgespec_lab.survey.sample import Sample
from tools.doubles.chat_endpoint import ChatEndpoint, Reply, serving

SECRET = "sk-very-secret"
PROMPT = "Count from one to nine."


async def ask(base_url: str, key: str = "", timeout_s: float = 10.0, **endpoint: object) -> Sample:
    section = EndpointSection(name="e", base_url=base_url, model="m", **endpoint)
    return await Prober(section, RequestSection(prompt=PROMPT, timeout_s=timeout_s), "here", key).sample(
        1_700_000_000.0
    )


async def ask_one(reply: Reply, **options: object) -> Sample:
    server = ChatEndpoint(lambda: reply)
    async with serving(server):
        return await ask(server.base_url, **options)


@pytest.mark.parametrize("wait_s", [0.0, 0.06, 0.15])
async def test_the_time_to_the_first_token_is_the_one_that_the_endpoint_took(wait_s: float) -> None:
    server = ChatEndpoint(lambda: Reply(wait_s=wait_s, tokens=5, step_s=0.01))
    async with serving(server):
        samples = [await ask(server.base_url) for _ in range(7)]
    assert {sample.outcome for sample in samples} == {"ok"}
    excess_ms = [sample.ttft_ms - 1e3 * true_s for sample, true_s in zip(samples, server.waits_s)]
    assert min(excess_ms) >= -0.5, "a request cannot take less time than its server took"
    assert median(excess_ms) < 15 + median(sample.stalled_ms for sample in samples)
    for sample, true_s in zip(samples, server.waits_s):
        assert sample.connect_ms is not None
        assert sample.total_ms >= 1e3 * true_s + 4 * 10 - 0.5
        assert (sample.chunks, sample.tokens, sample.tls_ms, sample.dns_ms) == (5, 5, None, None)
        # A reader that was held up sees the tokens closer together than they were sent, but not for longer than all.
        assert sample.tokens_per_s * (sample.total_ms - sample.ttft_ms) / 1e3 >= 4 - 0.01


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(status=401), "unauthorised"),
        (Reply(status=403), "unauthorised"),
        (Reply(status=404), "http-error"),
        (Reply(status=302), "http-error"),
        (Reply(status=500), "server-error"),
        (Reply(content_type="application/json", raw=b"{}"), "not-a-stream"),
        (Reply(raw=b"data: what?\n\n"), "not-a-stream"),
        (Reply(raw=b'data: {"error": {"message": "no"}}\n\n'), "stream-error"),
        (Reply(raw=b""), "broken"),
        (Reply(break_after=0), "broken"),
        (Reply(break_after=3), "broken"),
        (Reply(raw=b"data: [DONE]\n\n"), "empty"),
    ],
)
async def test_each_failure_of_an_endpoint_has_its_name(reply: Reply, outcome: str) -> None:
    sample = await ask_one(reply)
    assert (sample.outcome, sample.status) == (outcome, reply.status)
    assert sample.connect_ms is not None, "the network was measured all the same"


async def test_a_tiny_streaming_request_is_sent_and_the_key_only_there() -> None:
    server = ChatEndpoint(Reply)
    async with serving(server):
        sample = await ask(server.base_url, key=SECRET)
        await ask(server.base_url, limit_field="max_completion_tokens", ask_usage=False)
    (first, second), headers = server.requests, server.headers[0]
    assert first["messages"] == [{"role": "user", "content": PROMPT}]
    assert (first["stream"], first["max_tokens"], first["stream_options"]) == (True, 16, {"include_usage": True})
    assert (second["max_completion_tokens"], "max_tokens" in second, "stream_options" in second) == (16, False, False)
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert "Authorization" not in server.headers[1]
    assert SECRET not in repr(sample)
    assert PROMPT not in repr(sample)


@pytest.mark.claim("keys-and-prompts-are-in-no-sample")
async def test_a_redirection_does_not_carry_the_key_away() -> None:
    other = ChatEndpoint(Reply)
    async with serving(other):

        async def elsewhere(_: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": f"{other.base_url}/chat/completions"})

        app = web.Application()
        app.router.add_post("/v1/chat/completions", elsewhere)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        sample = await ask(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", key=SECRET)
        await runner.cleanup()
    assert (sample.outcome, other.requests) == ("http-error", [])
