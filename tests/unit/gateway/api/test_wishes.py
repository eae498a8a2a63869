"""What a body wants of the form of its answer, in every dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from alipes.gateway.api.openai.messages import freeform
from alipes.gateway.api.wishes import functions_of
from alipes.gateway.text.rules import Answer, Freeform
from alipes.instance.contract import Submit

Staged = Callable[..., None]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
MODEL = "hot-model"
ASKED = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def named(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "name": name, "parameters": SCHEMA} for name in names]


def chat(names: tuple[str, ...], **fields: Any) -> tuple[str, dict[str, Any]]:
    tools = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in names]
    return CHAT, {"model": MODEL, "messages": ASKED, "tools": tools, **fields}


def responses(names: tuple[str, ...], **fields: Any) -> tuple[str, dict[str, Any]]:
    return RESPONSES, {"model": MODEL, "input": "hi", "tools": named(*names), **fields}


def messages(names: tuple[str, ...], **fields: Any) -> tuple[str, dict[str, Any]]:
    tools = [{"name": n, "input_schema": SCHEMA} for n in names]
    return MESSAGES, {"model": MODEL, "max_tokens": 9, "messages": ASKED, "tools": tools, **fields}


AB = ("a", "b")
PREFILLED = [*ASKED, {"role": "assistant", "content": '{"a":'}]
SEARCH = {"type": "web_search"}
SEARCH_OF_MESSAGES = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
PAIR = [{"type": "function", "function": {"name": "b"}}]
FORMAT = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}


@pytest.mark.parametrize(
    ("request_", "grammar", "must_call", "single"),
    [
        (chat(AB), "", None, None),
        (chat(AB, tool_choice="auto", parallel_tool_calls=False), "", None, None),
        (chat(AB, tool_choice="required"), "a,b", True, False),
        (chat(AB, tool_choice="required", parallel_tool_calls=False), "a,b", True, True),
        (
            chat(AB, tool_choice={"type": "function", "function": {"name": "b"}}),
            "b",
            True,
            True,
        ),
        (
            chat(
                AB,
                tool_choice={
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": PAIR},
                },
            ),
            "b",
            False,
            False,
        ),
        (
            chat(
                AB,
                tool_choice={
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": PAIR},
                },
            ),
            "b",
            True,
            False,
        ),
        (chat((), response_format={"type": "text"}), "", None, None),
        (chat((), response_format={"type": "json_object"}), "json", False, False),
        (chat(AB, response_format={"type": "json_object"}), "a,b", False, False),
        (
            chat(AB, tool_choice="none", response_format={"type": "json_object"}),
            "json",
            False,
            False,
        ),
        (responses(AB), "", None, None),
        (responses(AB, tool_choice="required"), "a,b", True, False),
        (responses(AB, tool_choice={"type": "function", "name": "a"}), "a", True, True),
        (
            responses(
                AB,
                tool_choice={"type": "allowed_tools", "mode": "required", "tools": named("b")},
            ),
            "b",
            True,
            False,
        ),
        (responses((), text={"format": {"type": "json_object"}}), "json", False, False),
        (responses((), text={"format": FORMAT}), "json", False, False),
        (messages(AB), "", None, None),
        (messages(AB, tool_choice={"type": "any"}), "a,b", True, False),
        (
            messages(AB, tool_choice={"type": "any", "disable_parallel_tool_use": True}),
            "a,b",
            True,
            True,
        ),
        (messages(AB, tool_choice={"type": "tool", "name": "a"}), "a", True, False),
        (messages((), output_config={"format": FORMAT}), "json", False, False),
        (messages((), output_format=FORMAT), "json", False, False),
        # What is to be a tool that nothing here runs may be anything.
        (chat((), tools=[SEARCH], tool_choice=SEARCH), "", None, None),
        (chat((), tools=[SEARCH], tool_choice="required"), "", None, None),
        (responses((), tools=[*named("a"), SEARCH], tool_choice=SEARCH), "", None, None),
        (responses((), tools=[SEARCH], tool_choice="required"), "", None, None),
        (responses((), tools=[*named("a"), SEARCH], tool_choice="required"), "a", True, False),
        (
            responses(
                (),
                tools=[*named("a"), SEARCH],
                tool_choice={
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "a"}, SEARCH],
                },
            ),
            "a",
            True,
            False,
        ),
        (
            messages(
                (), tools=[SEARCH_OF_MESSAGES], tool_choice={"type": "tool", "name": "web_search"}
            ),
            "",
            None,
            None,
        ),
        (messages((), tools=[SEARCH_OF_MESSAGES], tool_choice={"type": "any"}), "", None, None),
    ],
)
def test_a_choice_becomes_a_grammar(
    staged: Staged,
    request_: tuple[str, dict[str, Any]],
    grammar: str,
    must_call: bool | None,
    single: bool | None,
) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "hello"
        reply = await stage.browser.post(*request_)
        assert reply.status == 200, reply.body
        (call,) = stage.fleet.of(Submit)
        assert call.sampling.grammar == grammar
        wishes = stage.texts[MODEL].wishes
        assert [(wish.must_call, wish.single) for wish in wishes] == (
            [] if must_call is None else [(must_call, single)]
        )

    staged(body)


def test_a_schema_is_passed_on_with_its_strictness(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "{}"
        inner = {"name": "x", "schema": SCHEMA, "strict": True}
        form = {"type": "json_schema", "json_schema": inner}
        for path, fields in (
            chat((), response_format=form),
            responses((), text={"format": FORMAT}),
        ):
            reply = await stage.browser.post(path, fields)
            assert reply.status == 200
        wishes = stage.texts[MODEL].wishes
        assert [wish.answer for wish in wishes] == [Answer(SCHEMA, True)] * 2
        assert reply.json()["text"] == {"format": FORMAT}

    staged(body)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (chat((), tool_choice="required"), "tool_choice"),
        (chat(AB, tool_choice={"type": "function", "function": {"name": "c"}}), "tool_choice"),
        (
            chat(
                AB,
                tool_choice={
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "tools": [{"type": "function", "function": {"name": "c"}}],
                    },
                },
            ),
            "tool_choice.allowed_tools.tools",
        ),
        (chat(("wrong",), tool_choice="required"), "tools"),
        (
            chat(("wrong",), response_format={"type": "json_schema", "schema": SCHEMA}),
            "response_format.schema",
        ),
        (responses(AB, tool_choice={"type": "function", "name": "c"}), "tool_choice"),
        (responses(AB, tool_choice={"type": "web_search"}), "tool_choice.type"),
        (messages(AB, tool_choice={"type": "tool", "name": "c"}), "tool_choice.name"),
        (messages(AB, tool_choice={"type": "tool"}), "tool_choice.name"),
        (chat((), messages=PREFILLED, response_format={"type": "json_object"}), "response_format"),
        (messages((), messages=PREFILLED, output_format=FORMAT), "output_format.schema"),
        (messages(AB, messages=PREFILLED, tool_choice={"type": "any"}), "tools"),
        (messages((), tool_choice={"type": "any"}), "tool_choice"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_names_the_field(
    staged: Staged, request_: tuple[str, dict[str, Any]], field: str
) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.post(*request_)
        assert reply.status == 400
        assert reply.json()["error"]["message"].startswith(f"{field}: ")
        assert stage.fleet.of(Submit) == []

    staged(body)


def test_forced_ids_win_over_a_grammar(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "hello"
        path, fields = chat(AB, tool_choice="required", forced_token_ids=[65])
        assert (await stage.browser.post(path, fields)).status == 200
        (call,) = stage.fleet.of(Submit)
        assert (call.sampling.grammar, len(call.forced)) == ("", 4)

    staged(body)


@pytest.mark.parametrize("nested", [False, True])
def test_a_freeform_tool_has_its_grammar(nested: bool) -> None:
    form: dict[str, Any] = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
    form = {"type": "grammar", "grammar": form} if nested else form
    (function,) = functions_of([freeform("patch", "edit", form)])
    assert function.freeform == Freeform("lark", "start: /a+/")
    for other in (None, {"type": "text"}, {**form, "syntax": "bnf", "grammar": None}):
        (function,) = functions_of([freeform("patch", None, other)])
        assert function.freeform is None
