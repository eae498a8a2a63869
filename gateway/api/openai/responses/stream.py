"""The event sequence of a response."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from alipes.gateway.api.errors import ApiError
from alipes.gateway.api.generation import Generation, Update
from alipes.gateway.api.openai.responses.output import Object, Output
from alipes.gateway.api.openai.responses.response import failed


class ResponseStream:
    """response.created, response.in_progress, the items, and how it ended. ``conclude`` makes
    the last response object, and is called before the client can see it."""

    def __init__(
        self, response: Object, output: Output, conclude: Callable[[Generation], Object]
    ) -> None:
        self._response = response
        self._output = output
        self._conclude = conclude
        self._sequence = 0

    def opening(self, generation: Generation) -> bytes:
        return b"".join([self._state(name, self._response) for name in ("created", "in_progress")])

    def silence(self) -> bytes:
        return self._state("in_progress", self._response)

    def update(self, update: Update) -> bytes:
        return self._all(self._output.add(update))

    def closing(self, generation: Generation) -> bytes:
        rest = self._all(self._output.close())
        response = self._conclude(generation)
        return rest + self._state(response["status"], response)

    def error(self, error: ApiError, request_id: str) -> bytes:
        """What came before is in the failed response; no event says that its last item is done."""
        self._output.close()
        return self._state("failed", failed(self._response, self._output.items, error))

    def _state(self, name: str, response: Object) -> bytes:
        return self._event({"type": f"response.{name}", "response": response})

    def _all(self, events: Iterable[Object]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def _event(self, event: Object) -> bytes:
        numbered = {**event, "sequence_number": self._sequence}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(numbered))
