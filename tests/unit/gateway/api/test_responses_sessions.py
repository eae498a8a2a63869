"""Which session and branch a response belongs to, and where its continuations go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from alipes.gateway.routing.identity import Source
from alipes.instance.contract import FailureClass, Submit

PATH = "/v1/responses"
BODY = {"model": "hot-model", "input": "hi"}
Staged = Callable[..., None]


async def _post(
    stage: Any, headers: dict[str, str] | None = None, **fields: Any
) -> tuple[str, str]:
    """Id and session of a new response."""
    reply = await stage.browser.post(PATH, BODY | fields, headers)
    assert reply.status == 200, reply.body
    return reply.json()["id"], reply.headers["x-alipes-session"]


def _branches(stage: Any, session: str) -> list[tuple[str, str, int]]:
    view = stage.sessions.view("", session, stage.dispatcher.now())
    return sorted((each.branch, each.parent, each.calls) for each in view.branches)


def test_a_continuation_stays_in_the_session(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        first, session = await _post(stage)
        second, same = await _post(stage, previous_response_id=first)
        third, also = await _post(stage, previous_response_id=second, input="else")
        assert session == same == also
        assert _branches(stage, session) == [("", "", 3)]
        calls = stage.fleet.of(Submit)
        assert [call.continuation for call in calls] == [False, True, True]
        assert len({call.branch for call in calls}) == 1
        assert len({first, second, third}) == 3

    staged(body)


def test_a_session_that_was_forgotten_gets_its_name_back(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        _, session = await _post(stage)
        later, _ = await _post(
            stage, {"x-session-id": session, "x-session-final": "true"}, input="bye"
        )
        assert stage.sessions.view("", session, stage.dispatcher.now()) is None
        _, again = await _post(stage, previous_response_id=later)
        assert again == session
        view = stage.sessions.view("", session, stage.dispatcher.now())
        assert view.source is Source.RESPONSE

    staged(body)


def test_two_continuations_of_one_response_are_a_fork(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        first, session = await _post(stage)
        await _post(stage, previous_response_id=first, input="left")
        fork, same = await _post(stage, previous_response_id=first, input="right")
        assert same == session
        assert _branches(stage, session) == [("", "", 2), (fork, "", 1)]
        await _post(stage, previous_response_id=fork, input="on")
        assert _branches(stage, session) == [("", "", 2), (fork, "", 2)]
        calls = stage.fleet.of(Submit)
        assert [call.continuation for call in calls] == [False, True, False, True]
        branches = [call.branch for call in calls]
        assert branches[0] == branches[1] != branches[2] == branches[3]

    staged(body)


def test_a_continuation_that_fails_leaves_its_place(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        first, session = await _post(stage)
        stage.fleet.auto = None
        fields = {"previous_response_id": first, "input": "left"}
        for attempt, stream in enumerate((False, True), start=2):
            raw = json.dumps(BODY | fields | {"stream": stream}).encode()
            _, task = stage.browser.open("POST", PATH, raw)
            calls = await stage.fleet.submitted(attempt)
            stage.fleet.start(*calls[-1])
            stage.fleet.fail(*calls[-1], FailureClass.INTERNAL)
            await asyncio.wait_for(task, 5)
        too_long = await stage.browser.post(PATH, BODY | fields | {"input": "x" * 3000})
        assert too_long.status == 400
        stage.fleet.auto = "x"
        await _post(stage, **fields)
        assert [branch for branch, *_ in _branches(stage, session)] == [""]

    staged(body)


def test_items_sent_back_tell_the_session_of_what_is_not_stored(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        reply = await stage.browser.post(PATH, BODY | {"store": False})
        session = reply.headers["x-alipes-session"]
        # A shortened history is no continuation by its tokens.
        items = [*reply.json()["output"], {"role": "user", "content": "other"}]
        _, same = await _post(stage, input=items, store=False)
        assert same == session
        items[0]["id"] = items[0]["id"].replace("msg_", "msg_0")[:-3] + "_0"
        _, other = await _post(stage, input=[{"role": "user", "content": "b"}, items[0]])
        assert other != session

    staged(body)


def test_a_session_once_found_is_sure(staged: Staged) -> None:
    """A doubtful id counts for a new session; the response knows which it was."""

    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        first, session = await _post(stage, {"x-correlation-id": "one"})
        await _post(stage, {"x-session-id": session, "x-session-final": "1"}, input="bye")
        long = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]
        await _post(stage, {"x-session-id": "rival"}, input=long)
        _, same = await _post(stage, input="more", previous_response_id=first)
        assert same == session == "one"

    staged(body)


def test_explicit_signals_count_more(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        first, _ = await _post(stage)
        follow = {"previous_response_id": first}
        assert (await _post(stage, {"x-session-id": "mine"}, **follow))[1] == "mine"
        assert (await _post(stage, **follow, prompt_cache_key="key"))[1] == "key"
        assert (await _post(stage, **follow, session_id="body"))[1] == "body"
        thread = {"session-id": "codex", "thread-id": "t1"}
        named, codex = await _post(stage, thread, prompt_cache_key="key")
        assert codex == "codex"
        _, same = await _post(stage, previous_response_id=named)
        assert same == "codex"
        assert _branches(stage, "codex") == [("t1", "", 2)]

    staged(body)
