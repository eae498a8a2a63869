"""The real clients: how each is set up by docs/clients.md, and asked."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .script import PROMPT

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
SECONDS = 240
Program = Callable[[str, str], str]


@dataclass(frozen=True)
class Done:
    code: int
    told: str
    """What it wrote to its output, and after it what it wrote to its errors."""


@dataclass(frozen=True)
class Place:
    """Where a client runs: its programs, its environment, the address that it is given."""

    program: Program
    home: dict[str, str]
    url: str

    @property
    def work(self) -> Path:
        return Path(self.home["HOME"]) / "work"

    def block(self, language: str) -> str:
        """The block of that language in docs/clients.md, of this gateway and model."""
        (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
        return str(found).replace("http://127.0.0.1:8000", self.url).replace("my-model", "local")

    def exports(self, heading: str) -> dict[str, str]:
        """The variables that the shell's block below a heading exports."""
        section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        (found,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        found = found.replace("http://127.0.0.1:8000", self.url).replace("my-model", "local")
        return dict(re.findall(r"export (\w+)=(\S+)", found))

    def run(self, *command: str, said: str = "", **more: str) -> Done:
        """``said`` is its input, ``more`` are variables."""
        done = subprocess.run(
            command,
            env=self.home | more,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            input=said,
            check=False,
        )
        return Done(done.returncode, done.stdout + done.stderr)


def claude(place: Place, *allowed: str) -> Done:
    """Claude Code, which may use these tools; an overflowing conversation compacts by itself."""
    command = [place.program("npm", "claude"), "-p", PROMPT, "--model", "claude-sonnet-4-5"]
    command += ["--allowedTools", *(allowed or ("Bash",))]
    return place.run(*command, **place.exports("Claude Code"))


def codex(place: Place, *more: str, context: int = 32768) -> Done:
    """``more`` are lines for the provider's table of its settings."""
    folder = Path(place.home["HOME"]) / ".codex"
    folder.mkdir()
    settings = place.block("toml").replace("window = 32768", f"window = {context}")
    (folder / "config.toml").write_text(settings + "\n".join(more))
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return place.run(place.program("npm", "codex"), "exec", *flags, PROMPT)


def opencode(place: Place, context: int | None = None) -> Done:
    """It is told of another ``context`` than the page has."""
    settings: dict[str, Any] = json.loads(place.block("json")) | {"permission": "allow"}
    if context is not None:
        limit = settings["provider"]["alipes"]["models"]["local"]["limit"]
        limit["context"] = context
    (place.work / "opencode.json").write_text(json.dumps(settings))
    return place.run(place.program("npm", "opencode"), "run", PROMPT)


def mini_swe_agent(place: Place) -> Done:
    exported = place.exports("mini-swe-agent")
    model = exported.pop("MODEL")
    flags = ("--yolo", "--exit-immediately", "-t", PROMPT, "-m", model)
    return place.run(place.program("mini-swe-agent", "mini"), *flags, **exported)


def aider(place: Place, *questions: str) -> Done:
    """The questions, one after the other in one chat."""
    exported = place.exports("aider")
    model = exported.pop("MODEL")
    flags = ["--model", model, "--no-git", "--yes-always", "--no-check-update"]
    flags += ["--analytics-disable", "--no-show-model-warnings", "--no-show-release-notes"]
    flags += ["--edit-format", "whole", "--no-fancy-input", "--no-pretty"]
    said = "\n".join((*questions, "/exit", ""))
    return place.run(place.program("aider", "aider"), *flags, said=said, **exported)
