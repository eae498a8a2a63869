"""The installed command as a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

PROBE = """
import sys
import alipes.cli.main
heavy = {"torch", "transformers", "starlette", "granian"} & set(sys.modules)
assert not heavy, heavy
"""


FILE = """
models: {{a: {{source: {{random: {{family: qwen3, size: tiny}}}}}}}}
instances: {{hot-0: {{pool: hot, models: [a], device_bytes: 64MiB, device: "cuda:99"}}}}
gateway: {{port: {port}, endpoint: "ipc://{folder}/link"}}
state: {{folder: state}}
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_starts_without_the_heavy_libraries(tmp_path: Path) -> None:
    probed = run("-c", PROBE, cwd=tmp_path)
    assert probed.returncode == 0, probed.stderr


def test_mistakes_end_with_a_line_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "alipes.yaml").write_text("models: {a: {source: 3}}\ninstances: {}\n")
    failed = run("-m", "alipes.cli.main", "check", cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("alipes.yaml: models.a.source: write a folder")
    assert len(failed.stderr.splitlines()) == 1


def test_serve_ends_when_no_instance_can_ever_serve(
    tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "alipes.yaml").write_text(FILE.format(port=port, folder=tmp_path))
    tmp_path.chmod(0o700)
    ended = run("-m", "alipes.cli.main", "serve", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    lines = ended.stderr.splitlines()
    assert lines[-1].startswith("no instance can serve: hot-0 failed for good")
    told = "ERROR nothing will serve a: all its instances have failed for good"
    assert any(line.endswith(told) for line in lines)
    assert any(" INFO hot-0 builds its engine" in line for line in lines)
