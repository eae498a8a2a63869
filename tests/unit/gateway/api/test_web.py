"""Browsers, addresses and names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from alipes.gateway.config import ApiKey

CHAT = "/v1/chat/completions"
BODY = {"model": "hot-model", "messages": [{"role": "user", "content": "hi"}]}
Staged = Callable[..., None]


async def _get(stage: Any, method: str, path: str, headers: dict[str, str]) -> Any:
    reply, task = stage.browser.open(method, path, b"", headers)
    await asyncio.wait_for(task, 5)
    return reply


@pytest.mark.parametrize(
    ("origins", "allowed"), [((), False), (("*",), True), (("http://a.test",), True)]
)
def test_a_preflight_needs_no_key(staged: Staged, origins: tuple[str, ...], allowed: bool) -> None:
    async def body(stage: Any) -> None:
        headers = {"origin": "http://a.test", "access-control-request-headers": "x-api-key"}
        reply = await _get(stage, "OPTIONS", CHAT, headers)
        assert reply.status == 204
        assert reply.headers.get("access-control-allow-origin") == (
            "http://a.test" if allowed else None
        )
        other = await _get(stage, "OPTIONS", CHAT, {"origin": "http://b.test"})
        assert ("access-control-allow-origin" in other.headers) is ("*" in origins)
        asked = await _get(stage, "GET", "/health", {"origin": "http://a.test"})
        assert ("access-control-allow-origin" in asked.headers) is allowed
        assert (await _get(stage, "OPTIONS", CHAT, {})).status == 405

    staged(body, api_keys=(ApiKey("k", "t"),), cors_origins=origins)


def test_no_address_is_redirected(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        for method, path, status in (
            ("GET", "/v1/models/", 200),
            ("GET", "/v1/models//", 200),
            ("GET", "/v1/models/hot-model/", 200),
            ("HEAD", "/", 200),
            ("GET", "/nowhere/", 404),
            ("POST", "/v1/embeddings/", 404),
        ):
            assert (await _get(stage, method, path, {})).status == status
        stage.fleet.auto = "ok"
        assert (await stage.browser.post(CHAT + "/", BODY)).status == 200

    staged(body)


def test_aliases_are_listed_and_served(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "ok"
        listed = (await _get(stage, "GET", "/v1/models", {})).json()["data"]
        assert "claude-haiku-4-5-20251001" in [model["id"] for model in listed]
        for name in ("claude-haiku-4-5-20251001", "claude-sonnet-5[1m]", "hot-model[1m]"):
            reply = await stage.browser.post(CHAT, BODY | {"model": name})
            assert (reply.status, reply.json()["model"]) == (200, "hot-model")
        refused = await stage.browser.post(CHAT, BODY | {"model": "gpt"})
        assert "claude-haiku-4-5-20251001" in refused.json()["error"]["message"]

    aliases = {"claude-haiku-4-5-20251001": "hot-model", "claude-*": "hot-model"}
    staged(body, aliases=aliases)
