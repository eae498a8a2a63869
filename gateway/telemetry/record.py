"""What is known about one client call, gathered while it is served."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from alipes.gateway.calls.call import Call
from alipes.gateway.calls.events import CallEvent
from alipes.gateway.routing.decision import Placement
from alipes.instance.contract import Drawn, Finished, Started

log = logging.getLogger("alipes.calls")


@dataclass(slots=True)
class CallRecord:
    """One client call; it observes the calls that serve it. Clock readings are nanoseconds of the
    gateway's clock, 0 while unknown; ``prefill`` is in seconds as the instance measured it,
    ``phase`` that of the slot which took the call in. Of the tokens cached some were
    ``restored_tokens``, from host memory."""

    request_id: str
    route: str
    received: int
    tenant: str = ""
    model: str = ""
    stream: bool = False
    instance: str = ""
    reason: str = ""
    session: str = ""
    branch: str = ""
    continuation: bool = False
    phase: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    restored_tokens: int = 0
    completion_tokens: int = 0
    begun: int = 0
    first_token: int = 0
    finished: int = 0
    prefill: float = 0.0
    status: int = 0
    disconnected: bool = False
    error: str = ""

    def of_call(self, call: Call, event: CallEvent, now: int) -> None:
        """Of several choices the first to begin, to draw and to finish count, and where the last
        was placed."""
        match event:
            case Placement():
                self.instance, self.reason = event.instance, str(event.reason)
            case Started():
                self.phase = self.phase or event.phase
                self.begun = self.begun or now
            case Drawn():
                self.first_token = self.first_token or now
            case Finished():
                self.prefill = self.prefill or event.prefill

    def seconds_until(self, reading: int) -> float | None:
        """Seconds from receipt until a clock reading, or None while it is unknown."""
        return (reading - self.received) / 1e9 if reading else None


def log_calls_to(stream: TextIO) -> None:
    """Write call lines to ``stream`` bare, so that each is JSON and nothing else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def write_line(record: CallRecord) -> None:
    """Log the call as one line of JSON."""
    if not log.isEnabledFor(logging.INFO):
        return
    line = {
        "event": "call",
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": record.request_id,
        "route": record.route,
        "tenant": record.tenant,
        "model": record.model,
        "stream": record.stream,
        "instance": record.instance,
        "reason": record.reason,
        "session": record.session,
        "branch": record.branch,
        "continuation": record.continuation,
        "phase": record.phase,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "restored_tokens": record.restored_tokens,
        "completion_tokens": record.completion_tokens,
        "queue_ms": _milliseconds(record.seconds_until(record.begun)),
        "prefill_ms": _milliseconds(record.prefill or None),
        "ttft_ms": _milliseconds(record.seconds_until(record.first_token)),
        "total_ms": _milliseconds(record.seconds_until(record.finished)),
        "status": record.status,
        "disconnected": record.disconnected,
        "error": record.error,
    }
    log.info(json.dumps(line, ensure_ascii=False))


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
