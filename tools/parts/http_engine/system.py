"""A `vllm serve` that nobody has changed, a gateway before it, and a client of each."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from edgespec.shared.models import resolve_model
from edgespec_lab.rig import Rig
from edgespec_lab.rig.chat import ChatClient
from edgespec_lab.rig.processes import Processes, free_port
from edgespec_lab.rig.stage import CLIENT_OPTIONS

MODEL = "smol"
CONTEXT = 2048
SLOTS = 16
START_S = 900.0
WARM_UP = "Tell me in a few sentences how a lighthouse works."
ALONE: Mapping[str, Any] = {"offload": "never", "sources": []}
"""The options of a request that has no candidates."""
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Vllm:
    """One that runs."""

    url: str
    model: Path
    """The folder of its model."""
    folder: Path
    """Takes the state of a gateway before it."""
    client: ChatClient


@dataclass(frozen=True)
class Answer:
    """One completion, which was streamed."""

    text: str
    tokens: int
    figures: Mapping[str, Any]
    """`usage.edgespec`; empty if vLLM itself answered."""

    @property
    def accepted(self) -> int:
        return sum(self.figures.get("accepted", {}).values())


def add_common(parser: argparse.ArgumentParser, *, rig: bool = True) -> None:
    """The options of all verbs; `rig`: those of a gateway and a worker too."""
    parser.add_argument("venv", type=Path, help="what `make vllm` made")
    parser.add_argument(
        "--url", default="", help="of one that runs already, with a model named smol (default: start one)"
    )
    parser.add_argument("--layers", type=int, default=0, metavar="N", help="of the model, if not all (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="of vLLM; the gateway and the worker compute, too")
    parser.add_argument("--block-size", type=int, default=0, metavar="TOKENS", help="of vLLM's cache, if not its own")
    if rig:
        parser.add_argument("--draft", default="auto:quantised", metavar="MODEL", help="the worker's")
        parser.add_argument("--rtt-ms", type=float, default=15.0, metavar="MS", help="round trip to the worker")


@contextlib.contextmanager
def vllm(options: argparse.Namespace) -> Iterator[Vllm]:
    """A vLLM that has ended its first completion, and a folder for what is before it."""
    model = options.venv.resolve() / "smol"
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ending:
        folder = Path(name)
        if options.layers:
            model = cut(model, folder / f"smol-{options.layers}", options.layers)
        url = options.url
        if not url:
            url = ending.enter_context(served(model, folder / "vllm", options))
        client = ChatClient(int(url.rpartition(":")[2]), MODEL, "")
        answer(client, chat(WARM_UP, 64))
        yield Vllm(url, model, folder / "rig", client)


@contextlib.contextmanager
def served(model: Path, folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """`vllm serve` on any cores until the block is left; its URL."""
    venv = options.venv.resolve()
    port = free_port()
    command = [
        *(str(venv / "bin/vllm"), "serve", str(model), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(CONTEXT)),
        *("--dtype", "float32", "--enforce-eager"),
    ]
    if options.block_size:
        command += ["--block-size", str(options.block_size)]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(options.threads),
        "LD_PRELOAD": f"{venv}/lib/libiomp5.so",
    }
    url = f"http://127.0.0.1:{port}"
    with Processes(folder, environment=environment) as processes:
        processes.start("vllm", command)
        processes.wait_for("vllm", lambda: healthy(url), START_S)
        yield url


def cut(model: Path, folder: Path, layers: int) -> Path:
    """A folder with the first layers of a model."""
    folder.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))

    weights = load_file(model / "model.safetensors")
    left_out = tuple(f"model.layers.{layer}." for layer in range(layers, config["num_hidden_layers"]))
    kept = {name: weight for name, weight in weights.items() if not name.startswith(left_out)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def healthy(url: str) -> bool:
    """Whether the server takes requests."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=30) as response:
        return bool(response.status == 200)
    time.sleep(0.5)
    return False


def gateway(server: Vllm, options: argparse.Namespace, more: Mapping[str, Any] | None = None) -> Rig:
    """A gateway before the server, and a worker that is paired with it; enter it with `linked`.

    `more`: further settings of the gateway, dotted.
    """
    settings = {
        "target.url": server.url,
        "target.context": CONTEXT,
        "target.slots": SLOTS,
        "policy.verification": "draws",
        "local_draft.model": "",
        "api.client_options": CLIENT_OPTIONS,
        **(more or {}),
    }
    draft = str(resolve_model(options.draft))
    return Rig(
        server.folder, str(server.model), draft, None, rtt_ms=options.rtt_ms, gateway_options=settings, engine="http"
    )


def client_of(rig: Rig) -> ChatClient:
    """A client of the gateway."""
    return ChatClient(rig.ready["api"]["port"], rig.ready["model"], rig.key)


def chat(prompt: str, tokens: int, options: Mapping[str, Any] | None = None, **more: Any) -> Body:
    """A greedy chat of so many tokens. `options`: those of the gateway; None: for vLLM itself."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, **more}
    if options is None:
        return {**body, "ignore_eos": True}
    return {**body, "edgespec": {"ignore_eos": True, "usage": True, **options}}


def answer(client: ChatClient, body: Body) -> Answer:
    """One completion."""
    text = ""
    usage: Mapping[str, Any] = {}
    for chunk in client.chunks(body):
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
        usage = chunk.get("usage") or usage
    return Answer(text, usage["completion_tokens"], usage.get("edgespec", {}))


def answers(client: ChatClient, bodies: Sequence[Body]) -> tuple[list[Answer], float]:
    """All at once, and the seconds until the last one has ended."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(bodies)) as clients:
        completions = list(clients.map(lambda body: answer(client, body), bodies))
    return completions, time.monotonic() - began
