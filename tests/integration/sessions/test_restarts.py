"""Gateways that end and come back over instances that stay."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROMPT = list(range(100, 740))
"""Ten full blocks."""
FINAL = {"x_session_final": "true"}
Restart = Callable[..., None]


@pytest.fixture
def restart(start_again: Callable[[Any], Any]) -> Restart:
    """End the gateway with a signal, and serve the file as it is after ``meanwhile``."""

    def ended(serving: Any, number: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        serving.stack.process.send_signal(number)
        code = serving.stack.process.wait(20)
        assert code == (0 if number == signal.SIGUSR1 else -number)
        meanwhile()
        serving.stack = start_again(serving.stack)
        serving.until(serving.all_up, 30)

    return ended


def processes(serving: Any) -> dict[str, tuple[int, str]]:
    """Pid and incarnation of every instance."""
    shown = serving.admin()["instances"]
    return {one["name"]: (one["hello"]["pid"], one["hello"]["incarnation"]) for one in shown}


def logged(serving: Any, text: str) -> int:
    return sum(text in line for line in serving.stack.log.read_text().splitlines())


def records(serving: Any) -> Path:
    folder: Path = serving.stack.file.parent / "state" / "instances"
    return folder


def test_instances_and_their_kv_stay_from_gateway_to_gateway(serve: Any, restart: Restart) -> None:
    """One is killed, one ends as planned, each with a call under way."""
    with serve({"cold-0": {"fake": {"step": 0.02}}}) as serving:
        before = processes(serving)
        first = serving.ask("alpha", PROMPT, "s1", **FINAL)
        assert first.cached_tokens == 0
        for times, number in ((1, signal.SIGKILL), (2, signal.SIGUSR1)):
            call = serving.begin("beta", PROMPT, "other", tokens=50, **FINAL)
            serving.until(lambda: serving.has_call("cold-0"))
            restart(serving, number, lambda call=call: call.thread.join(20))
            planned = number == signal.SIGUSR1
            assert (call.status, "completion_tokens" in str(call.body)) == (planned * 200, planned)
            assert processes(serving) == before
            again = serving.ask("alpha", PROMPT, f"s{times + 1}", **FINAL)
            assert (again.cached_tokens >= 576, again.text) == (True, first.text)
            # What an instance says is heard by the gateway of the time.
            assert logged(serving, "INFO cold-0 connects again") == times
            assert logged(serving, "is running: adopted") == times
        assert logged(serving, "is stopped: left to the next gateway") == 1
        pid, incarnation = before["cold-0"]
        os.kill(pid, signal.SIGKILL)
        serving.until(lambda: incarnation not in str(serving.admin()))
        serving.until(serving.all_up, 30)
        assert records(serving).exists()
    assert logged(serving, "INFO cold-0 ends: SIGTERM") == 1
    assert not records(serving).exists()


def test_what_is_not_as_the_file_says_now_is_ended(serve: Any, restart: Restart) -> None:
    with serve({"as-it-was": {}, "changed": {}, "removed": {}}) as serving:
        before = processes(serving)

        def meanwhile() -> None:
            file = json.loads(serving.stack.file.read_text())
            file["instances"]["changed"]["max_running"] = 3
            del file["instances"]["removed"]
            serving.stack.file.write_text(json.dumps(file))

        restart(serving, signal.SIGKILL, meanwhile)
        serving.until(lambda: '"max_running": 3' in json.dumps(serving.instance("changed")), 30)
        after = processes(serving)
        assert after["as-it-was"] == before["as-it-was"]
        gone = {before[name][0] for name in ("changed", "removed")}
        serving.until(lambda: not gone & {one.pid for one in serving.stack.processes()})
        assert {pid for pid, _ in after.values()} < {one.pid for one in serving.stack.processes()}
