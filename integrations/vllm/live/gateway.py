"""`python -m integrations.vllm.live.gateway VENV`: the gateway before a real vLLM that it starts, and a paired worker.

Run in edgespec's environment; `VENV` is what `make vllm` made. Prints a line for each check; exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.shared.models import resolve_model
from edgespec_lab.rig.processes import RigError
from edgespec_lab.rig.stage import CLIENT_OPTIONS, Rig

INTEGRATION = Path(__file__).parents[1]
SERVE_S = 600.0
CONTEXT = 2048
SCRIPT = """#!/bin/sh
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=0
export LD_PRELOAD={venv}/lib/libiomp5.so PYTHONPATH={integration}
exec {venv}/bin/vllm "$@" --enforce-eager
"""
SCHEMA = {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}, "n": {"type": "integer"}},
    "required": ["city", "n"], "additionalProperties": False,
}  # fmt: skip
PROMPTS = ("Explain how a bicycle stays upright.", "Write a short story about a lighthouse keeper.")
REFUSED: Sequence[Mapping[str, Any]] = (
    {"min_p": 0.1}, {"logit_bias": {"5": 1}}, {"seed": 7, "temperature": 1}, {"edgespec": {"k": 3}},
)  # fmt: skip


def rig_of(folder: Path, venv: Path, options: Any) -> Rig:
    """Gateway, worker and delayed link."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "vllm"
    script.write_text(SCRIPT.format(venv=venv, integration=INTEGRATION))
    script.chmod(0o755)
    settings = {
        "target.context": CONTEXT, "target.slots": 8, "target.dtype": "float32", "policy.verify_nodes": 8,
        "api.model_alias": ["gpt-4o-mini"], "api.client_options": CLIENT_OPTIONS,
    }  # fmt: skip
    draft = str(resolve_model("auto:quantised"))
    return Rig(
        folder / "rig", str(venv / "smol"), draft, None, rtt_ms=options.rtt_ms,
        gateway_options=settings, engine=f"vllm:{script}", cores=(None, 1), load_s=SERVE_S,
    )  # fmt: skip


def ask(rig: Rig, text: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy chat completion with `usage.edgespec`; raises RigError."""
    extension = {"usage": True, **more.pop("edgespec", {})}
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0}
    return rig.complete(body | {"edgespec": extension} | more)


def text_of(found: Mapping[str, Any]) -> str:
    """Of the first choice."""
    return str(found["choices"][0]["message"]["content"])


def drafts(rig: Rig) -> str:
    """Texts with a worker are those without; the usage names it."""
    accepted = 0
    for prompt in PROMPTS:
        alone = ask(rig, prompt, 96, edgespec={"offload": "never"})
        helped = ask(rig, prompt, 96)
        assert text_of(alone) == text_of(helped), prompt
        assert alone["usage"]["edgespec"]["workers"] == []
        figures = helped["usage"]["edgespec"]
        assert figures["workers"] == ["demo-worker"], figures
        [counts] = figures["by_worker"].values()
        assert counts["accepted"] == figures["accepted"].get("worker", 0) <= counts["verified"], figures
        assert helped["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
        accepted += counts["accepted"]
    assert accepted, "the worker's drafts came too late for vLLM to use any: is the machine busy?"
    return f"{accepted} draft tokens accepted"


def structured(rig: Rig) -> str:
    """A JSON schema, a forced tool, a free choice of tools: what vLLM follows parses, with a worker too."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    found = json.loads(text_of(ask(rig, "Name a city and a number.", 60, response_format=form)))
    assert found["city"] in ("Paris", "Oslo")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    forced = ask(rig, "The weather in Paris, number 3?", 90, tools=tools, tool_choice="required")
    arguments = json.loads(forced["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    ask(rig, "Hi", 16, tools=tools, parallel_tool_calls=False)
    return f"{found}, {arguments}"


def parameters(rig: Rig) -> str:
    """Stop strings, log-probabilities, `n`, seeds without drafts, the end of the context; what is refused."""
    whole = text_of(ask(rig, PROMPTS[0], 40))
    assert text_of(ask(rig, PROMPTS[0], 40, stop=whole[30:36])) == whole[: whole.index(whole[30:36])]
    found = ask(rig, PROMPTS[0], 4, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    assert all(len(one["top_logprobs"]) == 3 and one["logprob"] == one["top_logprobs"][0]["logprob"] for one in found)
    assert len(ask(rig, "Hi", 4, n=2, temperature=1)["choices"]) == 2
    never = {"edgespec": {"offload": "never"}, "temperature": 1, "seed": 7}
    assert text_of(ask(rig, "Hi", 24, **never)) == text_of(ask(rig, "Hi", 24, **never))
    long = ask(rig, "a " * 2000, 90)
    assert long["choices"][0]["finish_reason"] == "length", long
    assert long["usage"]["total_tokens"] == CONTEXT, long["usage"]
    for body in REFUSED:
        try:
            ask(rig, "Hi", 4, **body)
        except RigError as error:
            assert "Invalid" in str(error), error
        else:
            raise AssertionError(f"{body} was served")

    return "as documented"


def audit(rig: Rig) -> str:
    """Each offloaded request is in the audit log, with the worker's name."""
    entries = rig.gateway_command("audit", "--json")
    found = json.dumps(entries)
    assert "demo-worker" in found
    return f"{found.count('demo-worker')} mentions of the worker"


def ended(rig: Rig) -> str:
    """vLLM is killed: 503 with Retry-After, then it is back and gives the same text."""
    before = text_of(ask(rig, PROMPTS[0], 24))
    gateway = rig.pid("gateway")
    children = Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split()
    for child in children:
        if b"vllm" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.killpg(int(child), signal.SIGKILL)
    began = time.monotonic()
    refused = 0
    until = time.monotonic() + SERVE_S
    while time.monotonic() < until:
        status, header = _status(rig)
        if status == 200 and refused:
            break
        assert status in (200, 503), status
        refused += status == 503
        assert status == 200 or header, "no Retry-After"
        time.sleep(1.0)
    assert text_of(ask(rig, PROMPTS[0], 24)) == before
    return f"{refused} times 503, back after {time.monotonic() - began:.0f} s"


def _status(rig: Rig) -> tuple[int, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", rig.ready["api"]["port"], timeout=120)
    body = {"model": rig.ready["model"], "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    headers = {"Authorization": f"Bearer {rig.key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    response.read()
    return response.status, response.getheader("Retry-After")


CHECKS: Sequence[Callable[[Rig], str]] = (drafts, structured, parameters, audit, ended)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m integrations.vllm.live.gateway", description=__doc__)
    parser.add_argument("venv", type=Path, help="what `make vllm` made")
    parser.add_argument("--rtt-ms", type=float, default=15.0, metavar="MS", help="round trip to the worker")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep logs and state there")
    options = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = f"{INTEGRATION.parents[1]}:{INTEGRATION}"  # for the gateway, which imports edgespec_vllm
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        rig = rig_of(options.folder or Path(name), options.venv.resolve(), options)
        with rig:
            for line, step in rig.steps():
                print(line, file=sys.stderr, flush=True)
                step()
            for check in CHECKS:
                began = time.monotonic()
                try:
                    said = check(rig)
                except (AssertionError, RigError, ValueError, KeyError) as error:
                    said = f"WRONG: {type(error).__name__}: {str(error)[:600]}"
                    wrong = wrong + 1
                print(f"{check.__name__:12} {time.monotonic() - began:5.0f} s  {said}", flush=True)
    if wrong:
        return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
