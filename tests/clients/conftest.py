"""The real clients, in an environment of their own beside the model cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from alipes.cli.stack import ONE_THREAD, free_port

HERE = Path(__file__).parent
INSTALL_SECONDS = 420


@pytest.fixture(scope="session")
def clients(model_cache: Path) -> Path:
    """The folder of the clients' programs, kept under the hash of what it was made from. What
    cannot be fetched is a skip that says so."""
    lock = (HERE / "package.json").read_bytes()
    folder = model_cache / f"clients-{hashlib.sha256(lock).hexdigest()[:12]}"
    done = folder / "installed"
    if not done.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed: the clients cannot be fetched")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_bytes(lock)
        command = ["npm", "install", "--no-audit", "--no-fund"]
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, timeout=INSTALL_SECONDS
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            told = getattr(error, "stderr", b"") or str(error).encode()
            pytest.skip(f"the clients cannot be fetched: {told.decode()[-200:]}")
        done.touch()
    return folder / "node_modules" / ".bin"


@dataclass(frozen=True)
class Stack:
    url: str
    log: Path


@contextlib.contextmanager
def serving(folder: Path, text: str) -> Iterator[Stack]:
    """`alipes serve` of this file, ended as Ctrl-C does."""
    folder.chmod(0o700)
    port, log = free_port(), folder / "log"
    file = folder / "alipes.yaml"
    file.write_text(text.format(port=port, folder=folder))
    command = [sys.executable, "-P", "-m", "alipes.cli.main", "serve", "-c", str(file)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | ONE_THREAD,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready:"), log.read_text()[-2000:]
        yield Stack(f"http://127.0.0.1:{port}", log)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a client that knows nobody's settings and tells nobody anything."""
    folder = tmp_path / "home"
    (folder / "work").mkdir(parents=True)
    kept = ("PATH", "LANG", "TMPDIR")
    environment: dict[str, Any] = {name: os.environ[name] for name in kept if name in os.environ}
    return environment | {
        "HOME": str(folder),
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
