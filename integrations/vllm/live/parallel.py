"""`python -m integrations.vllm.live.parallel VENV`: drafts of a paired worker in a tensor and a data parallel vLLM.

Run in edgespec's environment; `VENV` is what `make vllm` made. Tensor parallel: random weights of a shape that two
ranks can share (SmolLM2 has nine heads). Their text is no language and repeats itself, so that the share of accepted
drafts says nothing about a real pair. Data parallel: SmolLM2. Exit status 1 if a text with a worker differs from one
without, or no draft reached vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec.shared.models import resolve_model
from edgespec_lab.rig.processes import Processes
from integrations.vllm.live.served import INTEGRATION, LinkRig, Server, measure, variables

PROMPTS = [f"Write a short story about the number {n}." for n in range(1, 7)]
TOKENS = 48


def even_heads(smol: Path, folder: Path) -> Path:
    """A model folder without weights, with SmolLM2's tokenizer and 16 heads; slow enough that drafts come in time."""
    shutil.copytree(smol, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    shape = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 16}
    (folder / "config.json").write_text(json.dumps(config | shape | {"head_dim": 64}))
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m integrations.vllm.live.parallel", description=__doc__)
    parser.add_argument("venv", type=Path, help="what `make vllm` made")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep logs and state there")
    options = parser.parse_args(argv)
    venv = options.venv.resolve()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        environment = variables(venv, folder) | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
        os.environ["PYTHONPATH"] = str(INTEGRATION)  # `cloud-gateway link` imports edgespec_vllm
        draft = str(resolve_model("auto:quantised"))
        rig = LinkRig(folder / "rig", str(venv / "smol"), draft, None, rtt_ms=2.0)
        with rig, Processes(folder, environment=environment) as processes:
            for step in (rig.start_gateway, rig.start_proxy, rig.pair, rig.start_worker):
                step()
            dummy = str(even_heads(venv / "smol", folder / "dummy"))
            ways: dict[str, tuple[str, list[str]]] = {
                "tensor parallel": (dummy, ["--tensor-parallel-size", "2", "--load-format", "dummy"]),
                "data parallel": (str(venv / "smol"), ["--data-parallel-size", "2"]),
            }
            for way, (model, more) in ways.items():
                board = rig.folder / "gateway" / "board.sock"
                with Server(venv, processes, board, model=model, more=more).running() as server:
                    wrong += compared(way, server)
    if wrong:
        return 1

    return 0


def compared(way: str, server: Server) -> bool:
    """Prints a line; whether something is wrong."""
    runs: list[Any] = [measure(server, arm, PROMPTS, 2, TOKENS) for arm in ("no consent", "worker")]
    differ = sum(len(runs[0].texts[prompt] | runs[1].texts[prompt]) > 1 for prompt in PROMPTS)
    figures = f"{runs[1].drafted} drafted, {runs[1].accepted} accepted"
    print(f"{way}: {figures}, {differ} of {len(PROMPTS)} texts differ", flush=True)
    return bool(differ or not runs[1].drafted)


if __name__ == "__main__":
    sys.exit(main())
