"""Sessions that overlap, return late, share instances with other models, and outgrow memory."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

PROMPT = list(range(100, 740))
"""Ten full blocks."""


def test_calls_of_one_session_may_overlap(serve: Any) -> None:
    fake = {"prefill_token": 0.0002, "step": 0.005}
    with serve({"cold-0": {"fake": fake}, "cold-1": {"fake": fake}}) as serving:
        first = serving.ask("alpha", PROMPT, "s")
        calls = [serving.begin("alpha", [*PROMPT, n], "s", tokens=20) for n in range(4)]
        replies = [call.wait() for call in calls]
        assert [reply.reason for reply in replies].count("lease") <= 1
        assert serving.admin()["leases"]["consumed"] <= 1
        assert len({reply.text for reply in replies}) == 4
        assert any(reply.instance == first.instance for reply in replies)
        again = serving.ask("alpha", [*PROMPT, 2], "s", tokens=20, x_session_final="true")
        assert again.text == replies[2].text


def test_a_session_that_returns_late_finds_its_prefix_without_a_lease(serve: Any) -> None:
    fake = {"prefill_token": 0.0005}
    instances = {"cold-0": {"fake": fake}, "cold-1": {"fake": fake}}
    with serve(instances, routing={"lease_seconds": 0.2}) as serving:
        first = serving.ask("alpha", PROMPT, "s")
        assert serving.admin()["leases"]["live"] == 1
        time.sleep(0.3)
        reply = serving.ask("alpha", [*PROMPT, 7], "s", x_session_final="true")
        assert reply.reason != "lease"
        assert (reply.instance, reply.cached_tokens) == (first.instance, len(PROMPT))
        leases = serving.admin()["leases"]
        assert (leases["installed"], leases["expired"], leases["consumed"]) == (1, 1, 0)


CLIENTS, TURNS, SWITCH = 10, 6, 0.1


def alternate(serving: Any) -> float:
    """Clients that call two models in turn, each as soon as it has its answer; wall seconds."""
    begin = time.monotonic()

    def work(client: int) -> None:
        for turn in range(TURNS):
            model = ("alpha", "beta")[(client + turn) % 2]
            serving.ask(model, [client, *PROMPT, turn], f"{client}", tokens=20)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(work, client) for client in range(CLIENTS)]:
            done.result()
    return time.monotonic() - begin


@pytest.mark.parametrize("instances", [1, 2])
def test_models_called_in_turn_by_many_neither_interrupt_each_other_nor_thrash(
    serve: Any, instances: int
) -> None:
    cost = {"switch": SWITCH, "step": 0.002, "prefill_token": 0.0001}
    with serve({f"cold-{n}": {"fake": cost} for n in range(instances)}) as serving:
        wall = alternate(serving)
        serving.until(lambda: serving.counter("finished") == CLIENTS * TURNS)
        switches = serving.counter("switches")
        assert serving.counter("preempted") == serving.counter("failed") == 0
        # A slot serves several calls: a switch for each would be ten times as many.
        assert switches <= CLIENTS * TURNS / 4
        assert switches * SWITCH <= wall * instances / 2


def test_blocks_are_evicted_while_their_model_gets_new_work(serve: Any) -> None:
    """Device and host hold a fraction of what the sessions have; calls arrive during switches."""
    small = {
        "device_bytes": "5MiB",  # 20 blocks of the fake engine's 256 KiB
        "host_bytes": "6MiB",
        "prefill_chunk": 128,
        "fake": {"switch": 0.05, "step": 0.002, "prefill_token": 0.00005, "restore_token": 1e-5},
    }
    rng = random.Random(5)
    with serve({"cold-0": small}) as serving:
        sessions = {
            f"s{n}": (("alpha", "beta")[n % 2], [n] * 64 + rng.sample(range(1000), 300))
            for n in range(8)
        }
        asked: list[tuple[str, list[int], Any]] = []
        for _turn in range(4):
            calls = []
            for name in rng.sample(sorted(sessions), len(sessions)):
                model, prompt = sessions[name]
                prompt += rng.sample(range(1000), 40)
                calls.append(serving.begin(model, list(prompt), name, tokens=12))
                asked.append((model, list(prompt), calls[-1]))
                time.sleep(rng.choice((0.0, 0.02, 0.08)))
            for call in calls:
                call.wait()
        assert serving.counter("host_evicted_blocks") > 0
        assert serving.counter("restores") > 0
        for model, prompt, reply in asked[::5]:
            alone = serving.ask(model, prompt, tokens=12, x_session_final="true")
            assert alone.text == reply.text
