"""Parsers of other projects, each in an environment of its own, made once for a version.

A package is fetched as a wheel without what it depends on, and only its Python is unpacked; the few
packages that its parsers do need go into a virtual environment beside it. Nothing of either comes
into this project's environment.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

HERE: Final = Path(__file__).parent
_NEEDED: Final = (
    "cachetools",
    "jinja2",
    "msgspec",
    "numpy",
    "openai",
    "orjson",
    "packaging",
    "partial-json-parser",
    "pydantic",
    "regex",
)
_FETCH_SECONDS: Final = 240
_RUN_SECONDS: Final = 120


class Unavailable(Exception):
    """The package cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Oracle:
    """``driver`` is the script beside this file that reads replies with the package's parsers."""

    package: str
    version: str
    driver: str

    def folder(self, cache: Path) -> Path:
        return cache / "oracles" / f"{self.package}-{self.version}"

    def prepared(self, cache: Path) -> Path:
        """The folder with the package and its environment. Raises ``Unavailable``."""
        folder = self.folder(cache)
        if folder.is_dir():
            return folder
        work = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            self._fetch(work)
            self._environment(work)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        work.rename(folder)
        return folder

    def read(self, cache: Path, replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the package makes of each reply, whole and streamed. Raises ``Unavailable``."""
        folder = self.prepared(cache)
        command = [str(folder / "venv/bin/python"), str(HERE / self.driver), str(folder / "source")]
        done = subprocess.run(
            command,
            input=json.dumps(replies),
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        result: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return result

    def _fetch(self, work: Path) -> None:
        _pip(
            [sys.executable, "-m", "pip"],
            ["download", "--no-deps", "--only-binary=:all:", "-d", str(work)],
            [f"{self.package}=={self.version}"],
        )
        (wheel,) = work.glob("*.whl")
        with ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(work / "source", names)
        wheel.unlink()

    def _environment(self, work: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--copies", str(work / "venv")], check=True)
        _pip([str(work / "venv/bin/python"), "-m", "pip"], ["install"], list(_NEEDED))


def _pip(pip: list[str], action: list[str], packages: list[str]) -> None:
    command = [*pip, "--disable-pip-version-check", "-qq", *action, *packages]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{packages[0]} takes too long to fetch") from None
    except subprocess.CalledProcessError as error:
        told = error.stderr.strip().splitlines()
        raise Unavailable(f"{packages[0]} cannot be fetched: {told[-1] if told else '?'}") from None
