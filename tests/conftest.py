"""Model folders that many tests share, made once into the cache (``ALIPES_CACHE``)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from alipes.instance.checkpoints.shapes import FAMILIES
from alipes.instance.checkpoints.sources import SMOLLM2, prepare
from alipes.instance.contract import RandomWeights

# Triton decides at import, and transformers imports it: without a GPU its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def _quiet(what: str, fraction: float) -> None:
    del what, fraction


@pytest.fixture(scope="session")
def model_cache() -> Path:
    return Path(os.environ.get("ALIPES_CACHE", "~/.cache/alipes")).expanduser()


@pytest.fixture(scope="session")
def smollm2_folder(model_cache: Path) -> Path:
    """SmolLM2-135M-Instruct, float16, converted from its package."""
    return prepare(SMOLLM2, model_cache, _quiet)


@pytest.fixture(scope="session")
def tiny_folders(model_cache: Path, smollm2_folder: Path) -> dict[str, Path]:
    """Random two-layer models by family, 8K context."""
    return {name: prepare(RandomWeights(name, "tiny"), model_cache, _quiet) for name in FAMILIES}


@pytest.fixture(scope="session")
def small_folders(model_cache: Path, smollm2_folder: Path) -> dict[str, Path]:
    """Random four-layer models by family, 32K context, about 60 MB each."""
    return {name: prepare(RandomWeights(name, "small"), model_cache, _quiet) for name in FAMILIES}
