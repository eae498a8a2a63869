"""A router that writes down all that goes into it and comes out, as lines of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from alipes.gateway.routing.decision import CallShape, Completion, RouterSettings
from alipes.gateway.routing.router import Router
from alipes.instance.contract import BlocksRemoved, BlocksStored, Hello, Snapshot


class WrittenPath(msgspec.Struct, frozen=True):
    """A ``BlockPath`` whose keys are all known."""

    by_format: dict[str, list[bytes]]

    def keys(self, kv_format: str) -> Sequence[bytes]:
        return self.by_format[kv_format]


class WrittenCall(msgspec.Struct, frozen=True):
    """A ``CallShape`` but for its path, and that."""

    shape: CallShape
    path: WrittenPath

    @classmethod
    def of(cls, call: CallShape, formats: Sequence[str]) -> WrittenCall:
        assert call.path is not None
        keys = {kv_format: list(call.path.keys(kv_format)) for kv_format in formats}
        return cls(msgspec.structs.replace(call, path=None), WrittenPath(keys))

    def read(self) -> CallShape:
        return msgspec.structs.replace(self.shape, path=self.path)


INPUTS: Mapping[str, tuple[Any, ...]] = {
    "configure": (RouterSettings, int),
    "connected": (Hello, int),
    "beat": (str, int),
    "updated": (str, Snapshot, int),
    "disconnected": (str, int),
    "drain": (str, int),
    "stored": (str, BlocksStored),
    "removed": (str, BlocksRemoved),
    "place": (WrittenCall, int),
    "retry": (int,),
    "started": (bytes, int),
    "complete": (bytes, int, Completion),
    "released": (bytes, int),
    "forget": (bytes,),
    "next_wakeup": (int,),
    "lease_of": (bytes, int),
    "longest_call": (str, int),
    "status": (int,),
}
"""Everything that can be asked of a router, and of what kinds its arguments are."""


class Line(msgspec.Struct, frozen=True):
    """One call of a method; ``result`` is JSON within JSON, so that it is compared byte by byte."""

    method: str
    arguments: msgspec.Raw
    result: str


class RecordingRouter(Router):
    """Every public method is recorded with its result when it is called from outside, and does what
    it always does."""

    def __init__(
        self, known: Mapping[str, frozenset[str]], settings: RouterSettings | None = None
    ) -> None:
        super().__init__(known, settings)
        self.lines: list[bytes] = []
        self._inside = False
        self._formats: dict[str, None] = {}
        for method in INPUTS:
            setattr(self, method, self._recorded(method))

    def _recorded(self, method: str) -> Any:
        inner = getattr(super(), method)

        def record(*arguments: Any) -> Any:
            if self._inside:
                return inner(*arguments)
            self._inside = True
            result = inner(*arguments)
            self._inside = False
            if method == "connected":
                self._formats.update(dict.fromkeys(m.kv_format for m in arguments[0].models))
            if method == "place":
                arguments = (WrittenCall.of(arguments[0], list(self._formats)), arguments[1])
            line = Line(method, msgspec.Raw(_json(list(arguments))), _json(result).decode())
            self.lines.append(_json(line))
            return result

        return record


def replay(router: Router, lines: Sequence[bytes]) -> list[tuple[str, str, str]]:
    """Ask ``router`` all that was asked: (method, what was answered then, what is now)."""
    answers = []
    for data in lines:
        line = msgspec.json.decode(data, type=Line)
        kinds = INPUTS[line.method]
        raw = msgspec.json.decode(line.arguments, type=list[msgspec.Raw])
        arguments = [
            msgspec.json.decode(part, type=kind)
            for part, kind in zip(raw, kinds[: len(raw)], strict=True)
        ]
        if line.method == "place":
            arguments[0] = arguments[0].read()
        result = getattr(router, line.method)(*arguments)
        answers.append((line.method, line.result, _json(result).decode()))
    return answers


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
