"""`python -m tools.clients URL KEY`: calls of other people's clients with their defaults, against a running gateway.

Each client is installed by its own means, in the latest version, into a folder outside the repository. A call is right
if it returns, or if it is refused with a 400 that is expected. `--out` writes the table of docs/results/clients.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import options, verbs

ALIAS = "gpt-4o-mini"
"""The gateway's `api.model_alias`, by which the clients ask."""
CALL_S = 600
PYTHON = """
import asyncio, importlib.metadata, json, os
from typing import Any
from pydantic import BaseModel
URL, KEY, M = os.environ["URL"] + "/v1", os.environ["KEY"], os.environ["MODEL"]
ASK = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}}, "required": ["city"],
          "additionalProperties": False}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
FORCED = {"type": "function", "function": {"name": "weather"}}
class Answer(BaseModel):
    ok: bool
def called(name, call):
    try:
        found = call()
        if asyncio.iscoroutine(found):
            found = asyncio.run(found)
        print(json.dumps([name, "right" if found else "nothing came", ""]), flush=True)
    except Exception as error:
        shown = next(iter(str(error).splitlines()), "")
        print(json.dumps([name, "400" if "400" in shown else "failed",
                          type(error).__name__ + ": " + shown]), flush=True)
"""
NODE = """
import { readFileSync } from "node:fs"
const { URL: url, KEY: apiKey, MODEL: M } = process.env, baseURL = url + "/v1"
const version = name => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version
const called = async (name, call) => {
  let row
  try { row = [name, (await call()) ? "right" : "nothing came", ""] }
  catch (e) { row = [name, String(e).includes("400") ? "400" : "failed", String(e).split("\\n")[0]] }
  console.log(JSON.stringify(row))
}
const ask = "What is the weather in Paris? Use the tool."
"""


@dataclass(frozen=True, slots=True)
class Client:
    """One library: what installs it, what is imported, and a line of its language for each call."""

    packages: Sequence[str]
    begin: str
    calls: Mapping[str, str]
    node: bool = False


CHAT = "client.chat.completions"
CLIENTS: Mapping[str, Client] = {
    "openai": Client(
        ["openai"],
        "import openai\nclient = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)",
        {
            "chat": f"{CHAT}.create(model=M, messages=ASK, max_tokens=8).choices[0].message.content",
            "stream": f"list({CHAT}.create(model=M, messages=ASK, max_tokens=8, stream=True))",
            "tools auto": f"{CHAT}.create(model=M, messages=ASK, tools=TOOLS, max_tokens=32).choices",
            "tools required": f"{CHAT}.create(model=M, messages=ASK, tools=TOOLS, tool_choice='required')"
            ".choices[0].message.tool_calls",
            "tool named": f"{CHAT}.create(model=M, messages=ASK, tools=TOOLS, tool_choice=FORCED)"
            ".choices[0].message.tool_calls",
            "parse": f"{CHAT}.parse(model=M, messages=ASK, response_format=Answer).choices[0].message.parsed",
            "parse with strict tools": f"{CHAT}.parse(model=M, messages=ASK, max_tokens=300, "
            "tools=[openai.pydantic_function_tool(Answer)], tool_choice='required', parallel_tool_calls=False)"
            ".choices[0].message.tool_calls",
            "responses": "client.responses.create(model=M, input='Say hi.', max_output_tokens=16).output_text",
            "responses stream": "list(client.responses.create(model=M, input='Hi', max_output_tokens=16, stream=True))",
            "responses tools": "client.responses.create(model=M, input='Weather?', tool_choice='required',"
            "tools=[{'type': 'function', **FUNCTION}]).output[0].arguments",
            "responses parse": "client.responses.parse(model=M, input='ok?', text_format=Answer).output_parsed",
            "responses with state": "client.responses.create(model=M, input='x', previous_response_id='resp_1')",
            "embeddings": "client.embeddings.create(model=M, input='x')",
        },
    ),
    "litellm": Client(
        ["litellm", "mcp"],
        "import litellm\nO = dict(model='openai/' + M, api_base=URL, api_key=KEY, messages=ASK)",
        {
            "completion": "litellm.completion(**O, max_tokens=8).choices[0].message.content",
            "stream": "list(litellm.completion(**O, max_tokens=8, stream=True))",
            "tools required": "litellm.completion(**O, tools=TOOLS, tool_choice='required')"
            ".choices[0].message.tool_calls",
            "schema": "litellm.completion(**O, response_format=Answer).choices[0].message.content",
        },
    ),
    "langchain-openai": Client(
        ["langchain-openai"],
        "from langchain_openai import ChatOpenAI\nL = ChatOpenAI(model=M, base_url=URL, api_key=KEY, max_retries=0)\n"
        "R = ChatOpenAI(model=M, base_url=URL, api_key=KEY, max_retries=0, use_responses_api=True)",
        {
            "invoke": "L.bind(max_tokens=8).invoke('Hi').content",
            "stream": "list(L.bind(max_tokens=8).stream('Hi'))",
            "structured": "L.with_structured_output(Answer).invoke('ok?')",
            "structured by function": "L.with_structured_output(Answer, method='function_calling').invoke('ok?')",
            "tools any": "L.bind_tools(TOOLS, tool_choice='any').invoke('Weather in Paris?').tool_calls",
            "responses": "R.invoke('Hi').content",
            "responses tools": "R.bind_tools(TOOLS, tool_choice='any').invoke('Weather in Paris?').tool_calls",
        },
    ),
    "instructor": Client(
        ["instructor"],
        "import instructor, openai\nI = lambda mode: instructor.from_openai("
        "openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0), mode=mode)\n"
        "A = lambda mode: I(mode).chat.completions.create(model=M, messages=ASK, response_model=Answer, max_retries=1)",
        {
            "TOOLS (default)": "A(instructor.Mode.TOOLS)",
            "TOOLS_STRICT": "A(instructor.Mode.TOOLS_STRICT)",
            "JSON_SCHEMA": "A(instructor.Mode.JSON_SCHEMA)",
        },
    ),
    "pydantic-ai-slim": Client(
        ["pydantic-ai-slim[openai]"],
        "from pydantic_ai import Agent, NativeOutput\nfrom pydantic_ai.models.openai import OpenAIChatModel, "
        "OpenAIResponsesModel\nfrom pydantic_ai.providers.openai import OpenAIProvider\n"
        "P = OpenAIProvider(base_url=URL, api_key=KEY)\nC, R = (k(M, provider=P) for k in (OpenAIChatModel, "
        "OpenAIResponsesModel))",
        {
            "text": "Agent(C).run_sync('Hi', model_settings={'max_tokens': 16}).output",
            "output_type (default)": "Agent(C, output_type=Answer).run_sync('ok?').output",
            "NativeOutput": "Agent(C, output_type=NativeOutput(Answer)).run_sync('ok?').output",
            "responses": "Agent(R).run_sync('Hi', model_settings={'max_tokens': 16}).output",
            "responses output_type": "Agent(R, output_type=Answer).run_sync('ok?').output",
        },
    ),
    "llm": Client(
        ["llm"],
        "import llm\nfrom llm.default_plugins.openai_models import Chat\n"
        "C = Chat('edgespec', model_name=M, api_base=URL)\nC.key = KEY",
        {"prompt": "C.prompt('Hi', max_tokens=8).text()", "stream": "list(C.prompt('Hi', max_tokens=8, stream=True))"},
    ),
    "openai (Node)": Client(
        ["openai"],
        'import OpenAI from "openai"\nconst c = new OpenAI({ baseURL, apiKey, maxRetries: 0 })\n'
        "const messages = [{ role: 'user', content: ask }]\nconst parameters = { type: 'object', properties: { ok: "
        "{ type: 'boolean' } }, required: ['ok'], additionalProperties: false }",
        {
            "chat": "(await c.chat.completions.create({ model: M, messages, max_tokens: 8 })).choices[0]",
            "tools required": "(await c.chat.completions.create({ model: M, messages, tool_choice: 'required', tools: "
            "[{ type: 'function', function: { name: 'f', parameters } }] })).choices[0].message.tool_calls",
            "responses": "(await c.responses.create({ model: M, input: 'Hi', max_output_tokens: 16 })).output_text",
        },
        node=True,
    ),
    "ai": Client(
        ["ai", "@ai-sdk/openai", "zod"],
        'import { generateText, streamText, generateObject, tool } from "ai"\nimport { createOpenAI } from '
        '"@ai-sdk/openai"\nimport { z } from "zod"\nconst o = createOpenAI({ baseURL, apiKey })\n'
        "const tools = { w: tool({ description: 'W', inputSchema: z.object({ ok: z.boolean() }) }) }\n"
        "const few = { maxOutputTokens: 16, maxRetries: 0 }, one = { maxRetries: 0 }",
        {
            "generateText (default)": "(await generateText({ model: o(M), prompt: 'Hi', ...few })).text",
            "streamText (default)": "await streamText({ model: o(M), prompt: 'Hi', ...few }).text",
            "tools required": "(await generateText({ model: o(M), prompt: ask, tools, toolChoice: 'required', "
            "...one }))"
            ".toolCalls[0].input",
            "generateObject": "(await generateObject({ model: o(M), prompt: 'ok?', schema: z.object({ ok: "
            "z.boolean() }),"
            " ...one })).object",
            "chat": "(await generateText({ model: o.chat(M), prompt: 'Hi', ...few })).text",
            "chat tools required": "(await generateText({ model: o.chat(M), prompt: ask, tools, toolChoice: "
            "'required', "
            "...one })).toolCalls[0].input",
        },
        node=True,
    ),
}
EXPECTED_400 = frozenset({"responses with state"})
ABSENT = frozenset({"embeddings"})
"""Answered with 404: the gateway serves no such thing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if every call is right."""
    parser = argparse.ArgumentParser(prog="python -m tools.clients", description=__doc__)
    parser.add_argument("url", help="of the gateway, such as http://127.0.0.1:8080")
    parser.add_argument("key", help='an API key; the gateway has `api.model_alias = ["gpt-4o-mini"]`')
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "edgespec-clients")
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--out", type=options.output, metavar="FILE", help="appends the table")
    parser.set_defaults(run=run)
    return verbs.run(parser, argv)


def run(args: argparse.Namespace) -> int:
    """Prints a row for each call."""
    environment = os.environ | {"URL": args.url, "KEY": args.key, "MODEL": ALIAS}
    rows = ["| client | version | call | result |", "| --- | --- | --- | --- |"]
    wrong = 0
    for name in args.only:
        version, found = tried(name, CLIENTS[name], args.folder, environment)
        for call, result, detail in found:
            expected = result == "right" or (call in EXPECTED_400 and result == "400") or call in ABSENT
            wrong += not expected
            shown = {"right": "right", "400": "400, as documented"}.get(result, result)
            shown = "404: not served" if call in ABSENT else shown if expected else f"**{result}**: {detail[:160]}"
            rows.append(f"| {name} | {version} | {call} | {shown} |")
            sys.stdout.write(rows[-1] + "\n")
    if args.out:
        with args.out.open("a") as file:
            file.write("\n".join(rows) + "\n")
    return 1 if wrong else 0


def tried(name: str, client: Client, folder: Path, environment: Mapping[str, str]) -> tuple[str, list[list[str]]]:
    """The version of a client, and for each call its name, its result and the error."""
    place = folder / name.replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    if client.node:
        if not (place / "node_modules").exists():
            subprocess.run(["npm", "install", "--no-audit", "--no-fund", *client.packages], cwd=place, check=True)
        lines = [f"await called({json.dumps(call)}, async () => {code})" for call, code in client.calls.items()]
        shown = f"console.log(JSON.stringify(version({json.dumps(client.packages[0])})))"
        command, script = ["node"], place / "calls.mjs"
        script.write_text("\n".join([NODE, client.begin, shown, *lines]))
    else:
        python = str(place / "bin" / "python")
        if not Path(python).exists():
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            subprocess.run([python, "-m", "pip", "-q", "install", *client.packages], check=True)
        lines = [f"called({call!r}, lambda: {code})" for call, code in client.calls.items()]
        shown = f"print(json.dumps(importlib.metadata.version({client.packages[0].partition('[')[0]!r})))"
        command, script = [python], place / "calls.py"
        script.write_text("\n".join([PYTHON, client.begin, shown, *lines]))
    done = subprocess.run(
        [*command, script],
        cwd=place,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=CALL_S,
        check=False,
    )
    values = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", '"'))]
    version = next((one for one in values if isinstance(one, str)), "?")
    found = [one for one in values if isinstance(one, list)]
    return version, found or [["start", "failed", next(iter(done.stderr.splitlines()[-1:]), "")]]


if __name__ == "__main__":
    sys.exit(main())
