"""What a process must be started with so that its CUDA memory can be parked (``parking.py``). Needs
no torch: whoever starts the process may have none loaded."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LIBRARY: Final = "torch_memory_saver_hook_mode_preload"


def parking_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables beside those of ``environment``; none where ``torch-memory-saver`` is not
    installed, or none of it for the CUDA that torch was built with."""
    saver, torch = _folder("torch_memory_saver"), _folder("torch")
    major = _cuda_major(torch) if torch else None
    if saver is None or major is None:
        return {}
    found = sorted(saver.parent.glob(f"{LIBRARY}_cu{major}.*so"))
    if not found:
        return {}
    others = [path for path in environment.get("LD_PRELOAD", "").split(":") if path]
    return {"LD_PRELOAD": ":".join([str(found[0]), *others])}


def torch_has_cuda() -> bool:
    """Whether torch is installed, and built for CUDA."""
    torch = _folder("torch")
    return torch is not None and _cuda_major(torch) is not None


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _cuda_major(torch: Path) -> str | None:
    """As torch's own file says, which is read, not run: importing it would load all of torch."""
    found = re.search(r"^cuda\b.*=\s*['\"](\d+)", (torch / "version.py").read_text(), re.MULTILINE)
    return found[1] if found else None
