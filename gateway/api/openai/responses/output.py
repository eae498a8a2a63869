"""The output items of a response, and the events that tell how they come about."""

from __future__ import annotations

from typing import Any

from alipes.gateway.api.generation import Finish, Update
from alipes.gateway.api.openai.responses.prompt import Tools
from alipes.gateway.text.deltas import Delta, TextDelta, ToolStart

Object = dict[str, Any]
Events = list[Object]


class Output:
    """Messages and function calls in the order in which a model writes them; one is open at a
    time. ``suffix`` makes the items' ids, which no other response may have. Events come without
    their sequence numbers."""

    def __init__(self, suffix: str, tools: Tools) -> None:
        self.items: list[Object] = []
        self.finish: Finish | None = None
        self._suffix = suffix
        self._names = tools.names
        self._open = False
        self._text: list[str] = []

    def add(self, update: Update) -> Events:
        self.finish = update.finish or self.finish
        return [event for delta in update.deltas for event in self._delta(delta)]

    def close(self) -> Events:
        """End the item that is open when nothing more comes; whole unless it was cut off."""
        return self._close(self.finish is not None and self.finish.reason != "length")

    def _delta(self, delta: Delta) -> Events:
        if isinstance(delta, ToolStart):
            return self._begin_call(delta)
        before: Events = []
        if isinstance(delta, TextDelta):
            before = self._begin_message()
            event = self._event("response.output_text.delta", delta=delta.text, logprobs=[])
        else:
            event = self._event("response.function_call_arguments.delta", delta=delta.text)
        self._text.append(delta.text)
        return [*before, event]

    def _begin_message(self) -> Events:
        if self._open and self.items[-1]["type"] == "message":
            return []
        message = {"type": "message", "role": "assistant", "content": []}
        added = self._begin("msg", message)
        return [*added, self._event("response.content_part.added", part=_text_part(""))]

    def _begin_call(self, start: ToolStart) -> Events:
        namespace, name = self._names.get(start.name, (None, start.name))
        call: Object = {"type": "function_call", "call_id": start.id, "name": name}
        if namespace:
            call["namespace"] = namespace
        return self._begin("fc", {**call, "arguments": ""})

    def _begin(self, prefix: str, item: Object) -> Events:
        closed = self._close(complete=True)
        item_id = f"{prefix}_{self._suffix}_{len(self.items)}"
        self.items.append({"id": item_id, "status": "in_progress", **item})
        self._open = True
        return [*closed, self._item_event("response.output_item.added")]

    def _close(self, complete: bool) -> Events:
        if not self._open:
            return []
        self._open = False
        item = self.items[-1]
        item["status"] = "completed" if complete else "incomplete"
        text, self._text = "".join(self._text), []
        if item["type"] == "message":
            part = _text_part(text)
            item["content"] = [part]
            events = [
                self._event("response.output_text.done", text=text, logprobs=[]),
                self._event("response.content_part.done", part=part),
            ]
        else:
            item["arguments"] = text
            done = "response.function_call_arguments.done"
            events = [self._event(done, name=item["name"], arguments=text)]
        return [*events, self._item_event("response.output_item.done")]

    def _item_event(self, kind: str) -> Object:
        """The item as it is now: what changes later must not show in it."""
        return {"type": kind, "output_index": len(self.items) - 1, "item": dict(self.items[-1])}

    def _event(self, kind: str, **fields: Any) -> Object:
        item = self.items[-1]
        event = {"type": kind, "item_id": item["id"], "output_index": len(self.items) - 1}
        if item["type"] == "message":
            event["content_index"] = 0
        return {**event, **fields}


def _text_part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
