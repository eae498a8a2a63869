"""``make demo``: the whole stack on this machine, one question, one replayed agent run."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from alipes.cli.stack import end, end_in_order

WORK: Final = Path(".demo")
PORT: Final = 8000
MODELS: Final = "smollm2-135m,qwen3-small"
QUESTION: Final = "What is the capital of France?"
TRAJECTORY: Final = Path(__file__).resolve().parent.parent / "replay/data/marshmallow-1867-xml.traj"
READY_SECONDS: Final = 180
STOP_SECONDS: Final = 30
ALIPES: Final = str(Path(sys.executable).with_name("alipes"))

console: Final = Console(highlight=False)


class DemoError(Exception):
    """The demo cannot go on; the message says why and where to look."""


def main() -> int:
    began = time.monotonic()
    end_in_order()
    try:
        _demo()
    except (DemoError, httpx.HTTPError) as error:
        console.print(f"demo: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("demo: interrupted", style="red")
        return 130
    console.print(f"\nAll done in {time.monotonic() - began:.0f} s.", style="bold green")
    return 0


def _demo() -> None:
    WORK.mkdir(exist_ok=True)
    file = WORK / "alipes.yaml"
    file.unlink(missing_ok=True)
    _step(f"alipes init: a cluster file with one hot and one cold instance, in {WORK}/")
    _alipes("init")
    keep_state_here(file)
    _step("alipes models prepare: SmolLM2 is converted once, the random models are drawn")
    _alipes("models", "prepare", "-c", file.name)
    port = choose_port(file)
    _step(f"alipes serve: gateway and instances, on port {port}")
    url = f"http://127.0.0.1:{port}"
    with _serving(file) as process:
        wait_ready(process)
        _ask(url)
        _step(f"alipes replay: a recorded SWE-bench run on {MODELS.replace(',', ' and ')}")
        _alipes(*replay_command(url))
        _step("stopping everything")
    console.print(f"Gateway and instances have stopped; their log and all results are in {WORK}/.")


def _step(text: str) -> None:
    console.print(f"\n== {text}", style="bold", markup=False)


def _alipes(*arguments: str) -> None:
    if subprocess.run([ALIPES, *arguments], cwd=WORK, check=False).returncode:
        raise DemoError(f"`alipes {' '.join(arguments)}` failed; see above")


def replay_command(url: str) -> tuple[str, ...]:
    """A later demo takes the place of an earlier one."""
    target = ("--base-url", f"{url}/v1", "--models", MODELS)
    return ("replay", str(TRAJECTORY), *target, "--overwrite")


def keep_state_here(file: Path) -> None:
    """Not in the user's cache."""
    file.write_text(file.read_text().replace("  # folder: ./state", "  folder: ./state", 1))


def choose_port(file: Path) -> int:
    """The usual port, or a free one, written into the file, where the usual one is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
            return PORT
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    text = file.read_text()
    if f"port: {PORT}" not in text:
        raise DemoError(f"{file} does not say `port: {PORT}`; free port {PORT} and try again")
    file.write_text(text.replace(f"port: {PORT}", f"port: {port}", 1))
    console.print(f"Port {PORT} is taken; using {port}.")
    return port


@contextmanager
def _serving(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The stack, ended when the block is left, however it is left."""
    with (WORK / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [ALIPES, "serve", "-c", file.name], cwd=WORK, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            if not end(process, STOP_SECONDS):
                console.print(f"The stack did not stop in {STOP_SECONDS} s; killed.", style="red")


def wait_ready(process: subprocess.Popen[bytes]) -> None:
    """Until the stack says so in its log: its address might be answered by another server."""
    began = time.monotonic()
    log = WORK / "serve.log"
    with console.status("waiting until every model has an instance"):
        while time.monotonic() - began < READY_SECONDS:
            if process.poll() is not None:
                break
            if any(line.startswith("ready: ") for line in log.read_text().splitlines()):
                console.print(f"Ready after {time.monotonic() - began:.1f} s.")
                return
            time.sleep(0.25)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise DemoError(f"the stack did not become ready; the end of {log}:\n{tail}")


def _ask(url: str) -> None:
    _step(f"POST {url}/v1/chat/completions")
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 40,
    }
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    if reply.status_code != 200:
        raise DemoError(f"the question was answered {reply.status_code}: {reply.text}")
    console.print(f"Question: {QUESTION}")
    answer = reply.json()["choices"][0]["message"]["content"]
    console.print(f"Answer:   {answer}", style="bold", markup=False)
    served = reply.headers.get("x-alipes-instance")
    console.print(f"Served by {served}: {reply.headers.get('x-alipes-reason')}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
