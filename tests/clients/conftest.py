"""The real clients, each in an environment of its own beside the model cache, and their gateway."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from alipes.cli.stack import ONE_THREAD, free_port

HERE = Path(__file__).parent
INSTALL_SECONDS = 420
SOURCES = {
    "npm": ("package.json", "package-lock.json"),
    "mini-swe-agent": ("mini-swe-agent.txt",),
    "aider": ("aider.txt",),
}
"""What each environment is made from."""


def commands(name: str, folder: Path) -> list[list[str]]:
    if name == "npm":
        # Not `ci`: a mirror may lack the packages of other systems, which the lock then lacks too.
        return [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder)]]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-deps"]
    listed = [*pip, "-r", str(folder / SOURCES[name][0])]
    return [[sys.executable, "-m", "venv", str(folder)], listed]


@pytest.fixture(scope="session")
def program(model_cache: Path) -> Callable[[str, str], str]:
    """The path of a client's program, by environment and name. Environments are kept under the
    hash of their lock; what cannot be fetched is a skip that says so."""

    def path(environment: str, name: str) -> str:
        texts = [(HERE / file).read_bytes() for file in SOURCES[environment]]
        lock = hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]
        folder = model_cache / f"client-{environment}-{lock}"
        if not (folder / "installed").exists():
            _install(environment, folder)
        bins = "node_modules/.bin" if environment == "npm" else "bin"
        return str(folder / bins / name)

    return path


def _install(environment: str, folder: Path) -> None:
    if environment == "npm" and shutil.which("npm") is None:
        pytest.skip("npm is not installed: the clients cannot be fetched")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in SOURCES[environment]:
        shutil.copy(HERE / file, folder)
    try:
        for command in commands(environment, folder):
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        told = (error.stderr or b"").decode(errors="replace") or str(error)
        pytest.skip(f"{environment} cannot be fetched: {told[-200:]}")
    (folder / "installed").touch()


@dataclass
class Gateway:
    """`alipes serve` of a file with one instance, at one address for good."""

    file: Path
    port: int
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.file.parent / "log"

    def begin(self) -> None:
        command = [sys.executable, "-P", "-m", "alipes.cli.main", "serve", "-c", str(self.file)]
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | ONE_THREAD,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready:"), self.log.read_text()[-2000:]

    def end(self, number: int = signal.SIGINT) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(30)

    def restart(self) -> None:
        """The gateway is killed and comes back; its instance stays."""
        pid = self.instance()["hello"]["pid"]
        self.end(signal.SIGKILL)
        self.begin()
        self.until_up()
        assert self.instance()["hello"]["pid"] == pid

    def kill_instance(self) -> None:
        os.kill(self.instance()["hello"]["pid"], signal.SIGKILL)

    def instance(self) -> dict[str, Any]:
        shown = httpx.get(f"{self.url}/admin/instances").json()
        return dict(shown["instances"][0])

    def until_up(self) -> None:
        deadline = time.monotonic() + 30
        while self.instance()["status"]["why"] != "ok":
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.1)


@contextlib.contextmanager
def serving(folder: Path, text: str, **more: Path) -> Iterator[Gateway]:
    folder.chmod(0o700)
    gateway = Gateway(folder / "alipes.yaml", free_port())
    gateway.file.write_text(text.format(port=gateway.port, folder=folder, **more))
    try:
        gateway.begin()
        yield gateway
    finally:
        gateway.end()


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a client that knows nobody's settings and tells nobody anything."""
    folder = tmp_path / "home"
    (folder / "work").mkdir(parents=True)
    kept = ("PATH", "LANG", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return environment | {
        "HOME": str(folder),
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
