"""Sessions of real agents through the tool loop; their model speaks by a script."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Stack, serving
from .script import DONE, Script

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
STEPS = 4
CALL = re.compile(r'\{"event": "call"')
SECONDS = 150
FILE = """
models:
  local: {{source: {{random: {{family: qwen3, size: small}}}}}}
instances:
  hot-0: {{pool: hot, models: [local], engine: fake, device_bytes: 6GiB, fake: {{step: 0.002}}}}
gateway:
  port: {port}
  endpoint: ipc://{folder}/link
  allow_forced_tokens: true
  limits: {{keep_alive: 1, default_max_tokens: 4096}}
aliases: {{"claude-*": local}}
state: {{folder: {folder}/state}}
"""


@pytest.fixture(scope="module")
def agents_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serving(tmp_path_factory.mktemp("agents"), FILE) as stack:
        yield stack


@pytest.fixture
def script(agents_stack: Stack) -> Iterator[Script]:
    one = Script(agents_stack.url, "local", STEPS)
    yield one
    one.close()


def block(language: str, url: str) -> str:
    """The block of that language in docs/clients.md, of this gateway and model."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found).replace("http://127.0.0.1:8000", url).replace("my-model", "local")


def ran(command: list[str], home: dict[str, str], **more: str) -> str:
    done = subprocess.run(
        command,
        env=home | more,
        cwd=Path(home["HOME"]) / "work",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def check(script: Script, stack: Stack) -> None:
    """All steps were gone through in one session, and prompts were found again."""
    main = [seen for seen in script.seen if not seen.side]
    assert [seen.status for seen in main] == [200] * len(main)
    assert {seen.step for seen in main} == set(range(STEPS + 1))
    sessions = {seen.headers["x-alipes-session"] for seen in main}
    assert len(sessions) == 1
    lines = map(json.loads, filter(CALL.match, stack.log.read_text().splitlines()))
    calls = {line["request_id"]: line for line in lines}
    for seen in main:
        if seen.step:
            line = calls[seen.headers["x-request-id"]]
            assert line["cached_tokens"] >= 0.9 * line["prompt_tokens"], line


def test_claude_code(
    clients: Path, home: dict[str, str], script: Script, agents_stack: Stack
) -> None:
    told = ran(
        [
            str(clients / "claude"),
            "-p",
            "run the steps",
            "--output-format",
            "json",
            "--allowedTools",
            "Bash",
            "--model",
            "claude-sonnet-4-5",
        ],
        home,
        **dict(re.findall(r"export (\w+)=(\S+)", block("sh", script.url))),
    )
    assert json.loads(told)["result"] == DONE
    check(script, agents_stack)


def test_codex(clients: Path, home: dict[str, str], script: Script, agents_stack: Stack) -> None:
    folder = Path(home["HOME"]) / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(block("toml", script.url))
    told = ran(
        [
            str(clients / "codex"),
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "run the steps",
        ],
        home,
    )
    assert DONE in told
    check(script, agents_stack)


def test_opencode(clients: Path, home: dict[str, str], script: Script, agents_stack: Stack) -> None:
    settings = json.loads(block("json", script.url)) | {"permission": "allow"}
    (Path(home["HOME"]) / "work" / "opencode.json").write_text(json.dumps(settings))
    told = ran([str(clients / "opencode"), "run", "run the steps"], home)
    assert DONE in told
    check(script, agents_stack)
