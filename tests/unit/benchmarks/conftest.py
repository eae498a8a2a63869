"""Benchmarks are scripts that import each other by name; tests load them likewise."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of ``benchmarks/``."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module
