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


def test_sessions_go_back_to_their_kv_after_a_crash_under_load(
    serve: Any, restart: Restart
) -> None:
    """Twelve sessions of two models on two instances: what a turn finds cached is as much after
    the gateway was killed amid all their turns as before. What is cached is worth more than a turn
    that another model has first, whoever comes back first."""
    sessions = [(f"s{number}", ("alpha", "beta")[number % 2]) for number in range(12)]

    def prompt(number: int, turn: int) -> list[int]:
        return [200 + number, *range(300, 300 + 192 * turn)]

    def all_at_once(turn: int) -> list[Any]:
        return [
            serving.begin(model, prompt(number, turn), name)
            for number, (name, model) in enumerate(sessions)
        ]

    def shares(turn: int) -> float:
        replies = [call.wait() for call in all_at_once(turn)]
        tokens = sum(len(prompt(number, turn)) for number in range(len(sessions)))
        return sum(reply.cached_tokens for reply in replies) / tokens

    pace = {"fake": {"step": 0.005, "prefill_token": 0.001}}
    with serve({"cold-0": pace, "cold-1": pace}, targets={"tpot": 0.05}) as serving:
        before = processes(serving)
        assert shares(1) == 0
        cached = [shares(turn) for turn in (2, 3)]
        cut = all_at_once(4)
        serving.until(lambda: serving.has_call("cold-0") or serving.has_call("cold-1"))
        restart(serving, signal.SIGKILL, lambda: [call.thread.join(20) for call in cut])
        assert all(call.status != 200 for call in cut)
        assert processes(serving) == before
        after = shares(4)
        print(f"cached share {cached[0]:.3f}, {cached[1]:.3f}, after the crash {after:.3f}")
        assert after >= cached[1]
        for name, _ in sessions:
            shown = serving.client.get(f"/v1/sessions/{name}").json()
            assert (len(shown["branches"]), shown["in_flight"]) == (1, 0)
            assert shown["calls"] >= 4
