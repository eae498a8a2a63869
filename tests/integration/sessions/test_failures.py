"""Instances that die, fall silent or are too small, under sessions that go on."""

from __future__ import annotations

import os
import signal
from typing import Any

PROMPT = list(range(100, 740))
"""Ten full blocks."""
SLOW = {"prefill_token": 0.002, "step": 0.002}
"""A prompt of 640 new tokens takes above a second."""
LONG_LEASE = {"lease_seconds": 60.0}


def kill(serving: Any, name: str) -> str:
    """End the instance's process at once; returns its incarnation."""
    hello = serving.instance(name)["hello"]
    os.kill(hello["pid"], signal.SIGKILL)
    return str(hello["incarnation"])


def back(serving: Any, name: str, incarnation: str) -> bool:
    shown = serving.instance(name)
    return bool(
        shown["hello"]
        and shown["hello"]["incarnation"] != incarnation
        and shown["status"]["why"] == "ok"
    )


def test_a_call_survives_its_instance_and_what_returns_is_clean(serve: Any) -> None:
    both = {"cold-0": {"fake": SLOW}, "cold-1": {"fake": SLOW}}
    with serve(both, routing=LONG_LEASE) as serving:
        first = serving.ask("alpha", PROMPT[:128], "s1")
        assert serving.admin()["leases"]["live"] == 1
        name, other = first.instance, {"cold-0": "cold-1", "cold-1": "cold-0"}[first.instance]
        call = serving.begin("alpha", PROMPT, "s1")
        serving.until(lambda: serving.has_call(name))
        old = kill(serving, name)
        reply = call.wait()
        assert reply.instance == other
        # The lease of the first call is consumed; the second one's holds a place elsewhere.
        leases = serving.admin()["leases"]
        assert (leases["consumed"], leases["live"]) == (1, 1)
        serving.until(lambda: back(serving, name, old))
        again = serving.ask("alpha", PROMPT, "s1", x_session_final="true")
        assert (again.instance, again.reason, again.text) == (other, "lease", reply.text)
        # A stranger with the same prompt sees where its blocks are: not on the new process.
        serving.ask("alpha", PROMPT, "s2", x_session_final="true")
        candidates = serving.last_candidates()
        assert candidates[name]["device_tokens"] == candidates[name]["host_tokens"] == 0
        assert candidates[other]["device_tokens"] + candidates[other]["host_tokens"] >= 576
        assert serving.instance(name)["snapshot"]["occupancy"]["host_used"] == 0


def test_leases_end_with_the_instance_that_they_are_on(serve: Any) -> None:
    with serve({"cold-0": {}}, routing=LONG_LEASE) as serving:
        for number in range(3):
            serving.ask("alpha", [*PROMPT, number], f"s{number}")
        assert serving.admin()["leases"]["live"] == 3
        old = kill(serving, "cold-0")
        serving.until(lambda: serving.admin()["leases"]["live"] == 0)
        assert serving.admin()["leases"]["discarded"] == 3
        # With nobody else to go to, a call waits for the process that is started again.
        reply = serving.begin("alpha", [*PROMPT, 0], "s0", x_session_final="true").wait()
        assert back(serving, "cold-0", old)
        assert (reply.reason, reply.cached_tokens) == ("only", 0)


def test_a_blocked_engine_gets_no_new_sessions_but_those_that_return(serve: Any) -> None:
    slow = {"fake": {"prefill_token": 0.0028}, "prefill_chunk": 2048}
    with serve({"cold-0": slow, "cold-1": slow}, routing=LONG_LEASE) as serving:
        name = serving.ask("alpha", PROMPT[:64], "one").instance
        assert serving.ask("alpha", PROMPT[:80], "two").instance == name
        # One chunk keeps the engine busy for six seconds; a state counts for five.
        final = {"x_session_final": "true"}
        blocking = serving.begin("alpha", PROMPT[:64] + list(range(2040)), "one", **final)
        serving.until(lambda: serving.instance(name)["status"]["why"] == "stale")
        fresh = serving.ask("alpha", PROMPT[:70], "new", x_session_final="true")
        assert fresh.instance != name
        assert serving.last_candidates()[name]["why"] == "stale"
        # The place that it holds is still the session's.
        reply = serving.begin("alpha", PROMPT[:90], "two", **final).wait()
        assert (reply.instance, reply.reason) == (name, "lease")
        assert blocking.wait().reason == "lease"
        serving.until(lambda: serving.instance(name)["status"]["why"] == "ok")


def test_a_stopped_process_gets_no_sessions_until_it_is_back(serve: Any) -> None:
    final = {"x_session_final": "true"}
    with serve({"cold-0": {}, "cold-1": {}}, routing=LONG_LEASE) as serving:
        name = serving.ask("alpha", PROMPT, "leased").instance
        pid = serving.instance(name)["hello"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            serving.until(lambda: serving.instance(name)["status"]["why"] == "silent")
            fresh = serving.ask("alpha", PROMPT, "new", **final)
            assert fresh.instance != name
            assert serving.last_candidates()[name]["why"] == "silent"
            # It holds a place, but does not answer whether it lives.
            reply = serving.ask("alpha", PROMPT, "leased", **final)
            assert reply.instance != name
            assert reply.reason != "lease"
            assert serving.admin()["leases"]["discarded"] == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        serving.until(lambda: serving.instance(name)["status"]["why"] == "ok")


def test_a_process_that_goes_on_in_time_keeps_its_sessions(serve: Any) -> None:
    with serve({"cold-0": {}, "cold-1": {}}, routing=LONG_LEASE) as serving:
        name = serving.ask("alpha", PROMPT, "leased").instance
        pid = serving.instance(name)["hello"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            serving.until(lambda: serving.instance(name)["status"]["why"] == "silent")
            returning = serving.begin("alpha", PROMPT, "leased", x_session_final="true")
            serving.until(lambda: serving.admin()["queued"] == {"alpha": 1})
        finally:
            os.kill(pid, signal.SIGCONT)
        reply = returning.wait()
        assert (reply.instance, reply.reason) == (name, "lease")


def test_a_call_that_one_instance_cannot_hold_goes_to_the_other(serve: Any) -> None:
    small = {"device_bytes": "2MiB"}  # eight blocks of the fake engine's 256 KiB
    with serve({"cold-0": small, "cold-1": {}}) as serving:
        places = {serving.ask("alpha", PROMPT, f"s{n}").instance for n in range(3)}
        assert places == {"cold-1"}
        assert serving.last_candidates()["cold-0"]["why"] == "too-small"
