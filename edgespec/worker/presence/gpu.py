"""Use of NVIDIA GPUs by other programs, through NVML."""

from __future__ import annotations

import os
import time
from typing import Any

from edgespec.worker.presence.source import Source, Unavailable


class OtherGpuUse(Source):
    """Share of the busiest GPU's time that other processes take, in percent.

    The driver samples each process and keeps the samples; a process that only holds memory has none. `nvidia-ml-py`,
    which is not installed with a worker. Not tried on a GPU.
    """

    name = "gpu"
    period_s = 0.25

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        self._seen_us = 0

    async def open(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise Unavailable("the package nvidia-ml-py is not installed") from None
        try:
            pynvml.nvmlInit()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            raise Unavailable(f"NVML cannot be used ({type(error).__name__})") from None
        self._nvml, self._seen_us = pynvml, int(time.time() * 1e6)  # its samples carry the time of day
        if not self._devices:
            raise Unavailable("this machine has no NVIDIA GPU")

    def read(self, now: float) -> float:
        """The highest of the samples since the last read."""
        return max(self._others(device) for device in self._devices)

    def _others(self, device: Any) -> float:
        nvml, since = self._nvml, self._seen_us
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device, since)
        except nvml.NVMLError_NotFound:  # no sample since
            return 0.0
        except nvml.NVMLError as error:
            raise Unavailable(f"the driver does not say who uses the GPU ({type(error).__name__})") from None
        latest = {one.pid: one.smUtil for one in sorted(samples, key=lambda one: one.timeStamp)}
        self._seen_us = max([since, *(int(one.timeStamp) for one in samples)])
        return float(sum(use for pid, use in latest.items() if pid != os.getpid()))
