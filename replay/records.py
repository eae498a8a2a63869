"""What a replay writes down: one record a call, as a line of JSON, at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from alipes.replay.files import Lines, write_whole


class Parts(msgspec.Struct, frozen=True):
    """Where the seconds of a call went; they add up to its latency from the intended enqueue.
    ``admission``: before the client could send it; ``queue``: at the gateway; ``slot``: at its
    instance, waiting for the model's turn or for room; ``switch``: model changes it sat through;
    ``restore``: KV copied from the host; ``recompute``: prefill of tokens that an earlier call of
    its branch had computed; ``prefill``: of the others; ``decode``: from the first token to the
    last, less what is among the above."""

    admission: float = 0.0
    queue: float = 0.0
    slot: float = 0.0
    switch: float = 0.0
    restore: float = 0.0
    recompute: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class CallRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call as it went. Instants are seconds since the replay began: ``intended`` is the
    instant at which the closed loop wanted to send it, and ``ttft`` counts from there.
    Token numbers are the endpoint's own, None where it did not say. ``output`` is a digest of
    the text, so that two runs can be compared. ``error`` is empty for a call that succeeded.
    ``phase`` is the slot phase that took the call in. ``returning`` tells that an earlier call of
    its branch had finished; ``warmup`` that no figure counts it."""

    session: str
    request_id: str
    model: str
    index: int
    gap: float
    intended: float
    sent: float
    finished: float
    expected_tokens: int
    ttft: float | None = None
    tpot: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str = ""
    instance: str = ""
    placement: str = ""
    output: str = ""
    error: str = ""
    branch: str = "main"
    restored_tokens: int | None = None
    phase: str = ""
    returning: bool = False
    warmup: bool = False
    parts: Parts | None = None


class PlannedTotals(msgspec.Struct, frozen=True):
    """A session as planned: how many calls, and which share of each message was kept."""

    session: str
    model: str
    calls: int
    share: float


class Recorder:
    """Appends every record to the file at ``path`` as one unbuffered line: whatever ends the
    run, the file holds whole lines only. What the file held is dropped, but for ``kept``."""

    def __init__(self, path: Path, kept: Iterable[CallRecord] = ()) -> None:
        write_whole(path, b"".join(map(_line, kept)))
        self._lines = Lines(path)

    def add(self, record: CallRecord) -> None:
        self._lines.add(_line(record))

    def close(self) -> None:
        self._lines.close()


def _line(record: CallRecord) -> bytes:
    return msgspec.json.encode(record) + b"\n"
