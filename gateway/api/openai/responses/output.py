"""The output items of a response, and the events that tell how they come about."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from alipes.gateway.api.generation import Finish, Update
from alipes.gateway.api.openai.responses.prompt import Tools, sealed
from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
)

Object = dict[str, Any]
Events = list[Object]

_DELTAS: Final = {
    "message": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "function_call": "response.function_call_arguments.delta",
}


class Output:
    """Thoughts, messages and calls in the order in which a model writes them; one is open at a
    time. ``suffix`` makes the items' ids, which no other response may have. Events come without
    their sequence numbers. A call that is no whole one is begun but never done: clients act on
    what is done. With ``seal`` thoughts are also told in the form in which clients send them back
    that keep no text of them."""

    def __init__(self, suffix: str, tools: Tools, seal: bool = False) -> None:
        self.finish: Finish | None = None
        self._items: list[Object] = []
        self._suffix = suffix
        self._tools = tools
        self._seal = seal
        self._open = False
        self._text: list[str] = []

    @property
    def items(self) -> list[Object]:
        """Those that count."""
        return [item for item in self._items if item["status"] != "dropped"]

    def add(self, update: Update) -> Events:
        self.finish = update.finish or self.finish
        return [event for delta in update.deltas for event in self._delta(delta)]

    def close(self) -> Events:
        """End the item that is open when nothing more comes; whole unless it was cut off."""
        return self._close(self.finish is not None and self.finish.reason != "length")

    def _delta(self, delta: Delta) -> Events:
        match delta:
            case ToolStart():
                return self._begin_call(delta)
            case ToolEnd():
                return self._close(delta.whole)
            case TextDelta():
                return [*self._begin_message(), self._said(delta.text, logprobs=[])]
            case ThinkingDelta():
                return [*self._begin_reasoning(), self._said(delta.text)]
            case ToolArguments():
                self._text.append(delta.text)
                told = self._current["type"] == "function_call"
                return [self._event(_DELTAS["function_call"], delta=delta.text)] if told else []

    @property
    def _current(self) -> Object:
        return self._items[-1]

    def _said(self, text: str, **fields: Any) -> Object:
        self._text.append(text)
        return self._event(_DELTAS[self._current["type"]], delta=text, **fields)

    def _is_open(self, kind: str) -> bool:
        return self._open and self._current["type"] == kind

    def _begin_message(self) -> Events:
        if self._is_open("message"):
            return []
        added = self._begin("msg", {"type": "message", "role": "assistant", "content": []})
        return [*added, self._event("response.content_part.added", part=_text_part(""))]

    def _begin_reasoning(self) -> Events:
        if self._is_open("reasoning"):
            return []
        return self._begin("rs", {"type": "reasoning", "summary": [], "content": []})

    def _begin_call(self, start: ToolStart) -> Events:
        origin = self._tools.origin(start.name)
        kind, prefix, content = (
            ("custom_tool_call", "ctc", "input")
            if origin.freeform
            else ("function_call", "fc", "arguments")
        )
        call: Object = {"type": kind, "call_id": start.id, "name": origin.name}
        if origin.namespace:
            call["namespace"] = origin.namespace
        return self._begin(prefix, {**call, content: ""})

    def _begin(self, prefix: str, item: Object) -> Events:
        closed = self._close(complete=True)
        item_id = f"{prefix}_{self._suffix}_{len(self._items)}"
        self._items.append({"id": item_id, "status": "in_progress", **item})
        self._open = True
        return [*closed, self._item_event("response.output_item.added")]

    def _close(self, complete: bool) -> Events:
        if not self._open:
            return []
        self._open = False
        item = self._current
        text, self._text = "".join(self._text), []
        if item["type"].endswith("_call") and not complete:
            item["status"] = "dropped"
            return []
        item["status"] = "completed" if complete else "incomplete"
        closing = {
            "message": self._close_message,
            "reasoning": self._close_reasoning,
            "function_call": self._close_function_call,
            "custom_tool_call": self._close_custom_tool_call,
        }
        events = closing[item["type"]](item, text)
        return [*events, self._item_event("response.output_item.done")]

    def _close_message(self, item: Object, text: str) -> Events:
        part = _text_part(text)
        item["content"] = [part]
        return [
            self._event("response.output_text.done", text=text, logprobs=[]),
            self._event("response.content_part.done", part=part),
        ]

    def _close_reasoning(self, item: Object, text: str) -> Events:
        item["content"] = [{"type": "reasoning_text", "text": text}]
        if self._seal:
            item["encrypted_content"] = sealed(text)
        return [self._event("response.reasoning_text.done", text=text)]

    def _close_function_call(self, item: Object, text: str) -> Events:
        item["arguments"] = text
        done = "response.function_call_arguments.done"
        return [self._event(done, name=item["name"], arguments=text)]

    def _close_custom_tool_call(self, item: Object, text: str) -> Events:
        item["input"] = _input(text)
        return [
            self._event("response.custom_tool_call_input.delta", delta=item["input"]),
            self._event("response.custom_tool_call_input.done", input=item["input"]),
        ]

    def _item_event(self, kind: str) -> Object:
        """The item as it is now: what changes later must not show in it."""
        return {"type": kind, "output_index": len(self._items) - 1, "item": dict(self._current)}

    def _event(self, kind: str, **fields: Any) -> Object:
        item = self._current
        event = {"type": kind, "item_id": item["id"], "output_index": len(self._items) - 1}
        if item["type"] in ("message", "reasoning"):
            event["content_index"] = 0
        return {**event, **fields}


def _text_part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _input(arguments: str) -> str:
    """The text that a freeform tool is called with."""
    try:
        given = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments
