"""One clear error that names the field, and the next call unharmed."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from alipes.gateway.config import Limits

CHAT = "/v1/chat/completions"
BODY = {"model": "hot-model", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "hot-model", "prompt": "x"}
Staged = Callable[..., None]

WRONG = [
    (CHAT, {"model": "nope"}, 404, "model"),
    (CHAT, {"model": 5}, 400, "model"),
    (CHAT, {"messages": "hi"}, 400, "messages"),
    (CHAT, {"messages": [5]}, 400, "messages[0]"),
    (CHAT, {"max_tokens": -1}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens"),
    (CHAT, {"max_tokens": "many"}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 1.5}, 400, "max_tokens"),
    (CHAT, {"max_completion_tokens": -5}, 400, "max_completion_tokens"),
    (CHAT, {"temperature": 3}, 400, "temperature"),
    (CHAT, {"temperature": "hot"}, 400, "temperature"),
    (CHAT, {"top_p": -0.1}, 400, "top_p"),
    (CHAT, {"top_k": -2}, 400, "top_k"),
    (CHAT, {"min_p": 2}, 400, "min_p"),
    (CHAT, {"repetition_penalty": 1e-44}, 400, "repetition_penalty"),
    (CHAT, {"n": 0}, 400, "n"),
    (CHAT, {"n": 129}, 400, "n"),
    (CHAT, {"stop": [""]}, 400, "stop[0]"),
    (CHAT, {"stop": 5}, 400, "stop"),
    (CHAT, {"top_logprobs": 21, "logprobs": True}, 400, "top_logprobs"),
    (CHAT, {"top_logprobs": 2}, 400, "top_logprobs"),
    (CHAT, {"logit_bias": {"x": 1}}, 400, "logit_bias.x"),
    (CHAT, {"logit_bias": {"9" * 5000: 1}}, 400, "logit_bias." + "9" * 32),
    (CHAT, {"logit_bias": {"\u0663": 1}}, 400, "logit_bias.\u0663"),
    (CHAT, {"logit_bias": {"1": 101}}, 400, "logit_bias[...]"),
    (CHAT, {"stream": "yes"}, 400, "stream"),
    (CHAT, {"tools": [{"type": "function"}]}, 400, "tools[0].function.name"),
    (CHAT, {"tool_choice": "required"}, 400, "tool_choice"),
    (CHAT, {"tool_choice": "some"}, 400, "tool_choice"),
    (CHAT, {"tool_choice": {"type": "function"}}, 400, "tool_choice.name"),
    (CHAT, {"tool_choice": {"type": "function", "function": {}}}, 400, "tool_choice.function.name"),
    (CHAT, {"tool_choice": {"type": "hosted"}}, 400, "tool_choice.type"),
    (
        CHAT,
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none"}}},
        400,
        "tool_choice.allowed_tools.mode",
    ),
    (CHAT, {"response_format": {"type": "xml"}}, 400, "response_format.type"),
    (CHAT, {"response_format": {"type": "json_schema"}}, 400, "response_format.schema"),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        400,
        "response_format.json_schema.schema",
    ),
    (CHAT, {"forced_token_ids": [-1]}, 400, "forced_token_ids[0]"),
    (CHAT, {"forced_token_ids": [999_999]}, 400, "forced_token_ids"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 2000}]}, 400, "messages"),
    ("/v1/completions", {"prompt": "x" * 2000}, 400, "prompt"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": ["a", 5]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [-5]}, 400, "prompt[0]"),
    ("/v1/completions", {"prompt": [1 << 40]}, 400, "prompt[0]"),
    ("/v1/completions", {"prompt": [[1], [99_999_999]]}, 400, "prompt[1]"),
    ("/v1/completions", {"prompt": ["a"] * 65, "n": 2}, 400, "prompt"),
    ("/v1/completions", {"echo": True}, 400, "echo"),
    ("/v1/completions", {"suffix": "s"}, 400, "suffix"),
    ("/v1/completions", {"best_of": 3}, 400, "best_of"),
    ("/tokenize", {"messages": [], "prompt": "x"}, 400, "prompt"),
    ("/detokenize", {"tokens": [1 << 30]}, 400, "tokens"),
]


@pytest.mark.parametrize(("path", "change", "status", "param"), WRONG)
def test_a_wrong_field_is_named(
    staged: Staged, path: str, change: dict[str, Any], status: int, param: str
) -> None:
    async def body(stage: Any) -> None:
        base = BODY if path == CHAT else COMPLETION
        reply = await stage.browser.post(path, base | change)
        assert reply.status == status, reply.body
        error = reply.json()["error"]
        assert error["param"] == param
        assert param in error["message"]
        assert "\n" not in error["message"]
        assert len(error["message"]) < 400
        await _works(stage)

    staged(body)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"model": "hot-model", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"model": "hot-model", "x": ' + b"[" * 100_000,
        b"[]",
        b"{}",
        b"null",
    ],
)
def test_a_body_that_is_no_request(staged: Staged, raw: bytes) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.post(CHAT, raw)
        assert reply.status == 400
        assert reply.json()["error"]["message"]
        await _works(stage)

    staged(body)


def test_a_body_over_the_limit_is_refused_unread(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open(
            "POST", CHAT, [b"never read"] * 3, {"content-length": "40000000"}
        )
        await task
        assert reply.status == 413
        assert reply.headers["connection"] == "close"
        assert reply.json()["error"]["code"] == "request_too_large"
        chunks = [b"x" * 600] * 100
        reply, task = stage.browser.open("POST", CHAT, chunks)
        await task
        assert reply.status == 413
        await _works(stage)

    staged(body, limits=Limits(body_bytes=1000))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "DEFLATE": lambda data: zlib.compress(data)[2:-4],
    "zstd": zstandard.compress,
    "gzip, zstd": lambda data: zstandard.compress(gzip.compress(data)),
    "identity": lambda data: data,
}


@pytest.mark.parametrize("coding", PACKERS)
def test_a_packed_body_is_read_up_to_the_limit(staged: Staged, coding: str) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "ok"

        async def sent(data: bytes) -> Any:
            headers = {"content-encoding": coding}
            reply, task = stage.browser.open("POST", CHAT, PACKERS[coding](data), headers)
            await task
            return reply

        whole = json.dumps(BODY).encode()
        assert (await sent(whole)).status == 200
        assert (await sent(whole + b" " * 2000)).status == 413
        if coding != "identity":
            reply, task = stage.browser.open("POST", CHAT, b"abc", {"content-encoding": coding})
            await task
            assert (reply.status, reply.json()["error"]["code"]) == (400, "invalid_encoding")

    staged(body, limits=Limits(body_bytes=1000))


def test_an_unknown_packing_is_415(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, b"abc", {"content-encoding": "br"})
        await task
        assert reply.status == 415
        assert "gzip, deflate, zstd" in reply.json()["error"]["message"]
        await _works(stage)

    staged(body)


def test_a_request_without_a_body_leaves_the_connection_open(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        for path in ("/health", "/v1/models"):
            assert "connection" not in (await stage.browser.get(path)).headers
        reply = await stage.browser.get("/v1/models", {"transfer-encoding": "chunked"})
        assert reply.headers["connection"] == "close"

    staged(body)


def test_forced_tokens_only_where_the_file_allows_them(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.post(CHAT, BODY | {"forced_token_ids": [5]})
        assert reply.status == 400
        assert reply.json()["error"]["param"] == "forced_token_ids"

    staged(body, allow_forced_tokens=False)


def test_unknown_paths_and_methods_get_json(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.get("/v2/nothing")
        assert (reply.status, reply.json()["error"]["type"]) == (404, "invalid_request_error")
        reply = await stage.browser.get("/v1/messages", {"x-request-id": "mine"})
        assert reply.headers["x-request-id"] == "mine"
        assert (reply.status, reply.json()["type"]) == (405, "error")

    staged(body)


async def _works(stage: Any) -> None:
    stage.fleet.auto = "fine"
    reply = await stage.browser.post(CHAT, BODY)
    assert reply.status == 200
    assert reply.json()["choices"][0]["message"]["content"] == "fine"
