"""What the interpreter cannot tell: whether a GPU would take the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from alipes.kernels.table import PORTABLE

pytest.importorskip("triton")

from alipes.kernels.triton_column import triton_column

PROGRAM = Path(__file__).with_name("compile_kernels.py")
SHARED_MEMORY = 99 << 10
"""That of the smallest GPUs since Ampere, of 227 KiB that the largest have."""


def test_every_kernel_compiles_and_fits_into_shared_memory(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = (sys.executable, "-P", PROGRAM)
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    taken = [(name, int(nbytes)) for name, nbytes in map(str.split, done.stdout.splitlines())]
    launched = {name for name, _ in taken}
    kernels = {
        name
        for module in {form.__module__ for form in forms()}
        for name in vars(sys.modules[module])
        if name.endswith("_kernel")
    }
    assert launched == kernels
    assert max(nbytes for _, nbytes in taken) <= SHARED_MEMORY


def forms() -> list[object]:
    column = triton_column()
    named = {name: getattr(column, name) for name in column.__slots__}
    return [form for name, form in named.items() if form is not getattr(PORTABLE, name)]
