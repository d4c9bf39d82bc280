"""Options that every verb has: which target writes, after which prompts."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from cloud_gateway.models.target_model import load as loading
from cloud_gateway.process.config import TargetSection
from cloud_gateway.process.targets import dtype_for
from edgespec.lab.demo import PROMPTS
from edgespec.shared.models import resolve_model
from tools import options


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="auto:quantised", help="as target.model")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=options.number(int, 0, 512), default=0, help="0: one for each core")
    parser.add_argument("--seed", type=int, default=1, help="which prompts are held back, and the order of batches")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")


def load(args: argparse.Namespace, dtype: loading.Dtype | None = None) -> loading.Loaded:
    """The target of the options; without a dtype in that in which the engine torch would load it. Raises ModelError."""
    args.threads = args.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(args.threads)
    return loading.load(resolve_model(args.target), dtype or dtype_for(TargetSection()), args.device)
