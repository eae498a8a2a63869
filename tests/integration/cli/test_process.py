"""The installed command as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROBE = """
import sys
import alipes.cli.main
heavy = {"torch", "transformers", "starlette", "granian"} & set(sys.modules)
assert not heavy, heavy
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
