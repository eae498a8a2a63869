"""Sessions from the headers of a call to the instance and back to who asks for them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from alipes.gateway.config import ApiKey, Limits
from alipes.instance.contract import (
    BlocksStored,
    Drawn,
    FailureClass,
    Started,
    Submit,
    Tier,
    Tokens,
    chain_key,
)

CHAT = "/v1/chat/completions"
MINE = {"x-session-id": "mine"}
Staged = Callable[..., None]


def chat(*said: str, **fields: Any) -> dict[str, Any]:
    """Turns of user and assistant alternate."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return {"model": "cold-model", "messages": messages, **fields}


def test_a_session_goes_to_the_instance_and_back(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        first = await stage.browser.post(CHAT, chat("hi"), MINE)
        second = await stage.browser.post(
            CHAT, chat("hi", "yes", "more", stream=True), MINE | {"x-session-final": "true"}
        )
        assert [reply.headers["x-alipes-session"] for reply in (first, second)] == ["mine"] * 2
        one, two = stage.fleet.of(Submit)
        assert one.branch == two.branch
        assert len(one.branch) == 16
        assert [(c.continuation, c.final) for c in (one, two)] == [(False, False), (True, True)]
        assert (await stage.browser.get("/v1/sessions/mine")).status == 404

    staged(body)


def test_a_growing_history_without_any_signal_is_one_session(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        replies = [
            await stage.browser.post(CHAT, chat(*said, n=2))
            for said in (("hi",), ("hi", "yes", "more"), ("ho",))
        ]
        names = [reply.headers["x-alipes-session"] for reply in replies]
        assert names[0] == names[1] != names[2]
        calls = stage.fleet.of(Submit)
        assert [call.continuation for call in calls] == [False, False, True, True, False, False]
        assert len({call.branch for call in calls}) == 4
        shown = (await stage.browser.get(f"/v1/sessions/{names[0]}")).json()
        assert (shown["calls"], shown["source"], len(shown["branches"])) == (4, "new", 2)

    staged(body)


def test_choices_without_a_signal_share_the_branch_name_that_was_found(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        side = MINE | {"x-branch-id": "side"}
        await stage.browser.post(CHAT, chat("hi"), side)
        reply = await stage.browser.post(CHAT, chat("hi", "yes", "more", n=2))
        assert reply.headers["x-alipes-session"] == "mine"
        shown = (await stage.browser.get("/v1/sessions/mine")).json()["branches"]
        assert [branch["branch"] for branch in shown] == ["side", "side"]

    staged(body)


def test_prompts_of_one_batch_are_of_different_sessions(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        batch = {"model": "hot-model", "prompt": ["one", "two"], "n": 2}
        await stage.browser.post("/v1/completions", batch)
        assert len(stage.sessions) == 2
        await stage.browser.post("/v1/completions", batch, MINE)
        assert len(stage.sessions) == 3

    staged(body)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"session_id": "mine"}),
        (CHAT, {"session_params": {"id": "mine"}}),
        (CHAT, {"prompt_cache_key": "mine", "user": "u", "session_id": 7}),
        ("/v1/completions", {"session_id": "mine", "prompt": "p"}),
        ("/v1/messages", {"metadata": {"user_id": json.dumps({"session_id": "mine"})}}),
        ("/v1/messages", {"metadata": {"user_id": "user_1_account__session_mine"}}),
    ],
)
def test_bodies_may_name_the_session(staged: Staged, path: str, fields: dict[str, Any]) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        reply = await stage.browser.post(path, chat("hi", max_tokens=5) | fields)
        assert reply.headers["x-alipes-session"] == "mine"

    staged(body)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"user": "mine", "safety_identifier": "mine", "session_params": ["mine"]}),
        ("/v1/messages", {"metadata": {"user_id": "mine"}}),
        ("/v1/messages", {"metadata": "mine"}),
    ],
)
def test_users_are_no_sessions(staged: Staged, path: str, fields: dict[str, Any]) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        reply = await stage.browser.post(path, chat("hi", max_tokens=5) | fields)
        assert reply.headers["x-alipes-session"].startswith("auto-")

    staged(body)


def test_an_id_cannot_write_headers(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        reply = await stage.browser.post(CHAT, chat("hi", session_id="a\r\nset-cookie: b=é"))
        name = reply.headers["x-alipes-session"]
        assert name.startswith("digest-")
        assert (await stage.browser.get(f"/v1/sessions/{name}")).json()["id"] == name

    staged(body)


def test_a_long_id_leads_to_its_session_too(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        reply = await stage.browser.post(CHAT, chat("hi"), {"x-session-id": "s" * 300})
        shown = await stage.browser.get(f"/v1/sessions/{'s' * 300}")
        assert shown.json()["id"] == reply.headers["x-alipes-session"]

    staged(body)


def test_a_session_is_shown_with_its_lease_to_its_tenant_only(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        a, b = {"x-api-key": "a"}, {"x-api-key": "b"}
        claim = {"x-branch-id": "side", "x-parent-branch-id": "main", "x-session-id": "a/b"}
        reply, task = stage.browser.open(
            "POST", CHAT, json.dumps(chat("x" * 200)).encode(), a | claim
        )
        ((name, call),) = await stage.fleet.submitted()
        flying = (await stage.browser.get("/v1/sessions/a/b", a)).json()
        assert (flying["in_flight"], flying["branches"][0]["lease"]) == (1, None)
        key = chain_key(call.root, np.frombuffer(call.tokens, "<i4")[:64])
        stage.dispatcher.message(name, BlocksStored("cold-model", Tier.DEVICE, call.root, (key,)))
        stage.fleet.start(name, call)
        stage.fleet.finish(name, call, 0, prefix=key)
        await task
        assert reply.status == 200
        shown = (await stage.browser.get("/v1/sessions/a/b", a)).json()
        assert (shown["id"], shown["object"], shown["source"]) == ("a/b", "session", "own-header")
        assert (shown["calls"], shown["in_flight"]) == (1, 0)
        (branch,) = shown["branches"]
        assert branch["id"] == call.branch.hex()
        assert (branch["branch"], branch["parent"]) == ("side", "main")
        assert (branch["model"], branch["instance"]) == ("cold-model", "cold-0")
        assert (branch["cached_tokens"], branch["prefix_tokens"]) == (3, 64)
        assert branch["lease"]["instance"] == "cold-0"
        assert 0 < branch["lease"]["seconds_left"] <= 1
        assert 0 <= branch["idle_seconds"] < 5
        for key_ in (b, {}):
            refused = await stage.browser.get("/v1/sessions/a/b", key_)
            assert refused.status == (404 if key_ else 401)

    keys = (ApiKey("a", "team-a"), ApiKey("b", "team-b"))
    staged(body, api_keys=keys)


def test_a_stopped_call_counts_as_finished(staged: Staged) -> None:
    """A stop string is found here, and the instance told to end: the session goes on from it."""

    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes.no"
        await stage.browser.post(CHAT, chat("hi", stop="."), MINE)
        (branch,) = (await stage.browser.get("/v1/sessions/mine")).json()["branches"]
        assert (branch["calls"], branch["instance"], branch["in_flight"]) == (1, "cold-0", 0)
        await stage.browser.post(CHAT, chat("hi", "yes", "more"), MINE)
        assert stage.fleet.of(Submit)[1].continuation

    staged(body)


def test_a_call_whose_client_left_is_no_turn(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        raw = json.dumps(chat("hi", stream=True)).encode()
        _, task = stage.browser.open("POST", CHAT, raw, MINE)
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.start(name, call)
        stage.fleet.say(name, call, "y")
        stage.browser.leave.set()
        await task
        assert len(stage.sessions) == 0

    staged(body)


def test_a_call_placed_again_is_the_same_call_of_its_session(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        raw = json.dumps(chat("hi", stream=True)).encode()
        reply, task = stage.browser.open("POST", CHAT, raw, MINE)
        ((name, first),) = await stage.fleet.submitted()
        stage.fleet.start(name, first)
        stage.dispatcher.lost(name, "killed")
        stage.fleet.connect("cold-0", ["cold-model"])
        (_, (name, second)) = await stage.fleet.submitted(2)
        assert first.call_id != second.call_id
        assert (first.branch, second.continuation) == (second.branch, False)
        stage.fleet.answer(name, second, "yes")
        await task
        assert (
            "".join(e["choices"][0]["delta"].get("content", "") for e in reply.events()[:-1])
            == "yes"
        )
        assert (await stage.browser.get("/v1/sessions/mine")).json()["calls"] == 1

    staged(body)


def test_a_stop_string_seen_just_before_the_loss_still_ends_the_call(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        raw = json.dumps(chat("hi", stop=".")).encode()
        reply, task = stage.browser.open("POST", CHAT, raw, MINE)
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.start(name, call)
        stage.fleet.say(name, call, "yes.")
        stage.dispatcher.lost(name, "killed")
        await task
        assert reply.json()["choices"][0]["message"]["content"] == "yes"
        (branch,) = (await stage.browser.get("/v1/sessions/mine")).json()["branches"]
        assert (branch["calls"], branch["instance"], branch["prefix_tokens"]) == (1, "", 0)

    staged(body)


def test_restored_tokens_are_told_apart(staged: Staged, caplog: pytest.LogCaptureFixture) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, json.dumps(chat("hi")).encode(), MINE)
        ((name, call),) = await stage.fleet.submitted()
        stage.dispatcher.message(name, Started(call.call_id, 5, 0.0, 2, "SP"))
        stage.dispatcher.message(name, Tokens(call.model, (Drawn(call.call_id, 65),)))
        stage.fleet.finish(name, call, 1)
        await task
        details = reply.json()["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": 5, "restored_tokens": 2}

    with caplog.at_level(logging.INFO, "alipes.calls"):
        staged(body)
    line = json.loads(caplog.records[-1].message)
    assert (line["session"], line["continuation"], line["phase"]) == ("mine", False, "SP")
    assert (line["cached_tokens"], line["restored_tokens"], len(line["branch"])) == (5, 2, 32)


def test_a_forgotten_session_leaves_the_router_too(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        forgotten: list[bytes] = []
        stage.book.router.forget = forgotten.append
        for n in range(5):
            await stage.browser.post(CHAT, chat(f"hi {n}"), {"x-session-id": f"s{n}"})
        assert forgotten == [call.branch for call in stage.fleet.of(Submit)[:3]]
        assert len(stage.sessions) == 2

    staged(body, limits=Limits(sessions=2))


@pytest.mark.parametrize("path", ["/metrics", "/admin/instances"])
def test_sessions_that_are_idle_for_too_long_are_not_counted(staged: Staged, path: str) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        await stage.browser.post(CHAT, chat("hi"), MINE)
        assert stage.sessions.branches == 1
        await asyncio.sleep(0.06)
        shown = (await stage.browser.get(path)).body
        assert b"alipes_sessions 0.0" in shown or json.loads(shown)["sessions"] == 0
        assert stage.sessions.branches == 0

    staged(body, limits=Limits(session_idle=0.05))


def test_a_drained_model_is_refused_at_once(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, json.dumps(chat("hi")).encode())
        ((name, call),) = await stage.fleet.submitted()
        await stage.browser.post("/admin/instances/cold-0/drain", b"")
        refused = await stage.browser.post(CHAT, chat("ho"))
        assert refused.status == 503
        assert "cold-model is not served now: cold-0 drained" in refused.body.decode()
        stage.fleet.answer(name, call, "yes")
        await task
        assert reply.status == 200

    staged(body)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/messages", "POST"),
        ("POST", "/v1/sessions/x", "GET, HEAD"),
        ("PUT", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    staged: Staged, method: str, path: str, allowed: str
) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open(method, path)
        await task
        assert (reply.status, reply.headers["allow"]) == (405, allowed)
        assert f"only {allowed}" in reply.body.decode()

    staged(body)


def test_metrics_count_sessions_leases_and_returns(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "yes"
        for said in (("hi",), ("hi", "yes", "more")):
            await stage.browser.post(CHAT, chat(*said), MINE)
        text = (await stage.browser.get("/metrics")).body.decode()
        assert "alipes_sessions 1.0" in text
        assert "alipes_branches 1.0" in text
        assert 'alipes_routed_calls{kind="placed"} 2.0' in text
        assert 'alipes_routed_calls{kind="returns"} 1.0' in text
        assert 'alipes_routed_calls{kind="same_instance"} 1.0' in text
        assert 'alipes_leases{outcome="live"}' in text
        assert 'alipes_instance_sp_admitted{instance="cold-0"} 0.0' in text
        shown = (await stage.browser.get("/admin/instances")).json()
        assert shown["sessions"] == 1

    staged(body)


def test_an_instance_that_fails_a_begun_whole_call_is_believed(staged: Staged) -> None:
    """A defect is told at once: only calls of instances that go are placed again."""

    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, json.dumps(chat("hi")).encode())
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.start(name, call)
        stage.fleet.say(name, call, "y")
        stage.fleet.fail(name, call, FailureClass.INTERNAL, "a defect")
        await task
        assert reply.status == 500
        assert len(stage.fleet.of(Submit)) == 1

    staged(body)
