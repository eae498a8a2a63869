"""What makes a model folder complete, and how one comes into being in a single step."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MANIFEST: Final = "alipes.json"
INDEX: Final = "model.safetensors.index.json"
WEIGHTS: Final = "model.safetensors"
_CHUNK: Final = 8 << 20


class SourceError(Exception):
    """A model source that cannot be prepared; the message names the culprit and the remedy."""


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files of a folder, in order; ``[WEIGHTS]`` where none exists."""
    index = folder / INDEX
    if not index.is_file():
        return [WEIGHTS]
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{index}: not a safetensors index ({error}); download it again"
        ) from None


def missing_file(folder: Path) -> str | None:
    """The first file that a complete model folder has and this one lacks."""
    names = ["config.json", "tokenizer.json", *weight_files(folder)]
    return next((name for name in names if not (folder / name).is_file()), None)


def digest(folder: Path) -> str:
    """Hex blake2b-128 over the names and bytes of the safetensors files. It tells a reader of
    the manifest what was prepared; an engine hashes what it loads, as a folder can be edited."""
    total = hashlib.blake2b(digest_size=16, person=b"alipes-weights")
    for name in weight_files(folder):
        total.update(name.encode() + b"\0")
        with (folder / name).open("rb") as file:
            while chunk := file.read(_CHUNK):
                total.update(chunk)
    return total.hexdigest()


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive advisory lock on ``path``, made where absent, across processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``target`` at the end, or vanishes on an error.

    The caller holds the lock of ``target``, so that a leftover of a killed process may go.
    """
    partial = target.with_name(f".{target.name}.partial")
    for stale in (partial, target):
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
