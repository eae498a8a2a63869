"""Keys, request ids, log lines, metrics, models, admin."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from alipes.gateway.config import ApiKey
from alipes.gateway.routing.decision import LateModel, Why
from alipes.instance.contract import Drain, Submit

CHAT = "/v1/chat/completions"
BODY = {"model": "hot-model", "messages": [{"role": "user", "content": "hi"}]}
KEYS = (ApiKey("key-a", "team-a", 1), ApiKey("key-b", "team-b", 5))
Staged = Callable[..., None]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer key-a"}, 200),
        ({"authorization": "bearer key-b"}, 200),
        ({"x-api-key": "key-b"}, 200),
        ({"authorization": "Bearer key-c"}, 401),
        ({"authorization": "Basic key-a"}, 401),
        ({"x-api-key": "key-\xff"}, 401),
        ({}, 401),
    ],
)
def test_keys(staged: Staged, headers: dict[str, str], status: int) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        reply = await stage.browser.post(CHAT, BODY, headers)
        assert reply.status == status
        if status == 401:
            assert reply.json()["error"]["code"] == "invalid_api_key"
        assert (await stage.browser.get("/v1/models", headers)).status == status
        assert (await stage.browser.get("/health")).status == 200

    staged(body, api_keys=KEYS)


@pytest.mark.parametrize(("key", "status"), [("key-a", 403), ("key-c", 401), ("key-o", 200)])
def test_instances_are_the_operators(staged: Staged, key: str, status: int) -> None:
    async def body(stage: Any) -> None:
        sent = {"x-api-key": key}
        shown = await stage.browser.get("/admin/instances", sent)
        drained = await stage.browser.post("/admin/instances/hot-0/drain", b"", sent)
        assert (shown.status, drained.status) == (status, status)
        assert len(stage.fleet.of(Drain)) == (status == 200)
        if status == 403:
            assert "admin: true" in shown.json()["error"]["message"]

    staged(body, api_keys=(*KEYS, ApiKey("key-o", "operator", admin=True)))


def test_a_key_has_so_many_calls_and_no_more(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        mine = {"x-api-key": "key-a"}
        reply, task = stage.browser.open("POST", CHAT, json.dumps(BODY).encode(), mine)
        ((instance, call),) = await stage.fleet.submitted()
        refused = await stage.browser.post(CHAT, BODY, mine)
        assert refused.status == 429
        assert refused.headers["retry-after"] == "1"
        stage.fleet.answer(instance, call, "x")
        await task
        assert reply.status == 200
        stage.fleet.auto = "x"
        assert (await stage.browser.post(CHAT, BODY, mine)).status == 200

    staged(body, api_keys=KEYS)


def test_tenants_have_their_own_chain_roots(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        for key in ("key-a", "key-b"):
            await stage.browser.post(CHAT, BODY, {"x-api-key": key})
        first, second = stage.fleet.of(Submit)
        assert first.tokens == second.tokens
        assert first.root != second.root

    staged(body, api_keys=KEYS)


def test_prompts_are_known_to_their_tenant_only(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        key = {"x-api-key": "key-b"}
        for path in (CHAT, "/v1/messages", "/v1/messages/count_tokens", "/tokenize"):
            assert (await stage.browser.post(path, BODY | {"max_tokens": 5}, key)).status == 200
        assert stage.texts["hot-model"].tenants == ["team-b"] * 4

    staged(body, api_keys=KEYS)


@pytest.mark.parametrize("sent", ["", "with space", "a" * 129, "x\ty", "é"])
def test_a_strange_request_id_is_replaced(staged: Staged, sent: str) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.get("/health", {"x-request-id": sent})
        assert reply.headers["x-request-id"].startswith("req_")

    staged(body)


def test_each_call_is_one_line_of_json(staged: Staged, caplog: pytest.LogCaptureFixture) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "abc"
        await stage.browser.post(CHAT, BODY | {"stream": True}, {"x-request-id": "one"})
        await stage.browser.post(CHAT, BODY | {"model": "no\nsuch"}, {"x-request-id": "two"})
        await stage.browser.get("/health")

    calls = logging.getLogger("alipes.calls")
    calls.addHandler(caplog.handler)
    calls.setLevel(logging.INFO)
    try:
        staged(body)
    finally:
        calls.removeHandler(caplog.handler)
    lines = [r.getMessage() for r in caplog.records if r.name == "alipes.calls"]
    first, second = (json.loads(line) for line in dict.fromkeys(lines))
    assert (first["request_id"], first["status"], first["stream"]) == ("one", 200, True)
    assert (first["model"], first["instance"]) == ("hot-model", "hot-0")
    assert (first["prompt_tokens"], first["cached_tokens"]) == (8, 3)
    assert first["completion_tokens"] == 3
    assert 0 <= first["queue_ms"] <= first["ttft_ms"] <= first["total_ms"]
    assert (second["request_id"], second["status"]) == ("two", 404)
    assert second["ttft_ms"] is None
    assert not any("\n" in line for line in lines)


def test_metrics_have_bounded_labels(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "abc"
        await stage.browser.post(CHAT, BODY)
        for i in range(20):
            await stage.browser.post(CHAT, BODY | {"model": f"unknown-{i}"})
        reply = await stage.browser.get("/metrics")
        text = reply.body.decode()
        assert reply.headers["content-type"].startswith("text/plain")
        assert "unknown-" not in text
        chat = f'route="{CHAT}"'
        assert f'alipes_calls_total{{model="hot-model",{chat},status="200"}} 1.0' in text
        assert 'alipes_tokens_total{kind="completion",model="hot-model"} 3.0' in text
        assert 'alipes_ttft_seconds_count{model="hot-model"} 1.0' in text
        assert 'alipes_placements_total{instance="hot-0"' in text
        assert 'alipes_instance_deadline_risk{instance="cold-0",model="cold-model"} 2.0' in text
        assert 'alipes_instance_kv_blocks{instance="hot-0",state="free"} 1000.0' in text

    staged(body)


def test_models(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        listed = (await stage.browser.get("/v1/models")).json()
        assert [m["id"] for m in listed["data"]] == ["hot-model", "cold-model"]
        one = await stage.browser.get("/v1/models/hot-model")
        assert one.json() == listed["data"][0]
        assert (await stage.browser.get("/v1/models/org/none")).status == 404

    staged(body)


def test_ready_names_the_models_that_nobody_serves(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.get("/ready")
        assert reply.status == 503
        assert reply.json()["missing"] == ["cold-model", "hot-model"]
        stage.fleet.connect("hot-0", ["hot-model"])
        assert (await stage.browser.get("/ready")).json()["missing"] == ["cold-model"]
        stage.connect_all()
        assert (await stage.browser.get("/ready")).status == 200

    staged(body, connect=False)


def test_instances_show_state_and_the_terms_of_decisions(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        await stage.browser.post(CHAT, BODY)
        shown = (await stage.browser.get("/admin/instances")).json()
        by_name = {entry["name"]: entry for entry in shown["instances"]}
        assert by_name["hot-0"]["connected"]
        assert by_name["hot-0"]["snapshot"]["counters"]["live_calls"] == 0
        assert not by_name["hot-1"]["connected"]
        (decision,) = shown["decisions"]
        assert decision["instance"] == "hot-0"
        terms = {c["instance"]: c for c in decision["candidates"]}
        assert {"queue", "prefill", "decode", "activation", "total", "why"} <= set(terms["hot-0"])
        assert not terms["hot-1"]["admitted"]
        assert shown["late"] == []

    staged(body)


def test_what_models_wait_for_too_long_is_shown(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(stage: Any) -> None:
        router = stage.dispatcher.book.router
        late = LateModel("hot-model", 2, 9.5, {"hot-0": Why.FULL, "hot-1": Why.DOWN})
        status = structs.replace(router.status(stage.dispatcher.now()), late=(late,))
        monkeypatch.setattr(router, "status", lambda now: status)
        shown = (await stage.browser.get("/admin/instances")).json()["late"]
        why = {"hot-0": "full", "hot-1": "down"}
        assert shown == [{"model": "hot-model", "waiting": 2, "waited": 9.5, "why": why}]

    staged(body)


def test_draining_takes_an_instance_out(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.connect("hot-1", ["hot-model"])
        reply = await stage.browser.post("/admin/instances/hot-0/drain", b"")
        assert reply.json() == {"instance": "hot-0", "draining": True}
        assert len(stage.fleet.of(Drain)) == 1
        stage.fleet.auto = "x"
        for _ in range(3):
            await stage.browser.post(CHAT, BODY)
        names = {name for name, message in stage.fleet.sent if isinstance(message, Submit)}
        assert names == {"hot-1"}
        assert (await stage.browser.post("/admin/instances/none/drain", b"")).status == 404

    staged(body)


def test_tokenize_and_back(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        fields = {"model": "hot-model", "prompt": "abc"}
        shown = (await stage.browser.post("/tokenize", fields)).json()
        assert shown == {"tokens": [97, 98, 99], "count": 3, "max_model_len": 2000}
        back = await stage.browser.post(
            "/detokenize", {"model": "hot-model", "tokens": shown["tokens"]}
        )
        assert back.json() == {"prompt": "abc"}
        chat = {"model": "hot-model", "messages": BODY["messages"]}
        assert (await stage.browser.post("/tokenize", chat)).json()["count"] == 8
        assert (await stage.browser.post("/tokenize", {"prompt": "x"})).status == 400

    staged(body)


def test_a_request_that_ends_before_its_body_is_let_go(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.browser.leave.set()
        _, task = stage.browser.open("POST", CHAT, [])
        await asyncio.wait_for(task, 5)

    staged(body)
