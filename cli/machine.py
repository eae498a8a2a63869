"""What this machine is called, and which devices it has."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

from alipes.instance.memory.preload import torch_has_cuda


def cpu_name() -> str:
    """The processor's model, or its kind where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def cuda_devices() -> int:
    """How many CUDA devices torch has here: as many as the driver counts, none where torch is built
    without CUDA. Importing torch to ask it takes seconds."""
    if not torch_has_cuda():
        return 0
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value
