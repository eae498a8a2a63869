"""Tells whether a process that runs is the one that would be started now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from alipes.instance.contract import InstanceSettings

_CODE: Final = ("alipes.instance", "alipes.kernels")
_INHERITED: Final = ("ALIPES_", "CUDA_")
_BYTES: Final = 16


def code_digest() -> str:
    """Of the code that instances run."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for package in _CODE:
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        for path in sorted(Path(next(iter(spec.submodule_search_locations))).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def fingerprint(
    code: str,
    settings: InstanceSettings,
    argv: Sequence[str],
    env: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
) -> str:
    """A digest of all that makes an instance process what it is: its ``code_digest``, settings and
    command, what it gets of the environment, and the files of its models (names, sizes, times)."""
    inherited = {name: environ[name] for name in environ if name.startswith(_INHERITED)}
    models = [list(_files(Path(model.folder))) for model in settings.models]
    parts = (code, settings, argv, inherited | dict(env), models)
    whole = msgspec.json.encode(parts, order="sorted")
    return hashlib.blake2b(whole, digest_size=_BYTES).hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    for path in sorted(folder.glob("*")):
        if path.exists():
            state = path.stat()
            yield path.name, state.st_size, state.st_mtime_ns
