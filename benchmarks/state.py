"""What it costs that sessions and stored responses outlive the gateway.

Of the event loop: taking what a call changed, beside the call's own bookkeeping in the session
table; medians of batches, and the slowest, in which Python looked for garbage. Of the writer's
thread: rows and SQLite. At a start: everything back in the tables, beside a bare read of the same
file. Times but the last are those of the processor, of one thread.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import numpy as np
from common import Claim, arguments, write_report

from alipes.gateway.api.openai.responses.kept import Turn
from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.routing.identity import Claim as SessionClaim
from alipes.gateway.routing.sessions import BRANCH_RECORDS, SessionTable
from alipes.gateway.state.file import NAME, StateFile
from alipes.gateway.state.keeper import StateKeeper
from alipes.gateway.state.rows import index_change, response_changes, session_changes

MOST_BYTES: Final = 1 << 30
BODY_BYTES: Final = 26 << 10
"""Of a response; its turn has as much again."""
BATCH: Final = 20
PROMPT: Final = 1000
LONG_PROMPT: Final = 100_000
LOOP_MICROSECONDS: Final = 50.0
LOAD_SECONDS: Final = 3.0


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    sessions, content = (1000, 32 << 20) if options.quick else (10_000, 256 << 20)
    with tempfile.TemporaryDirectory(prefix="alipes-state-") as work:
        taken = [
            take_calls(Path(work, "one"), sessions, PROMPT, 1),
            take_calls(Path(work, "four"), sessions // BRANCH_RECORDS, PROMPT, BRANCH_RECORDS),
            take_calls(Path(work, "long"), 100, LONG_PROMPT, 1),
        ]
        written = write_responses(Path(work, "one"), content)
        loaded = load(Path(work, "one"), sessions, content)
    claims = [
        at_most("event loop for a changed session", taken[1]["loop us"], "us", LOOP_MICROSECONDS),
        at_most(
            f"{sessions} sessions and {content >> 20} MiB of responses are back",
            loaded["seconds"],
            "s",
            LOAD_SECONDS,
        ),
    ]
    return write_report("state", [*taken, written, loaded], claims, options.json)


def at_most(name: str, value: float, unit: str, target: float) -> Claim:
    return Claim(name, value, unit, f"<= {target:g}", value <= target)


def tables() -> tuple[SessionTable, ResponseStore]:
    sessions = SessionTable(20_000, 3600.0, Random(1).randbytes)
    return sessions, ResponseStore(20_000, MOST_BYTES, 3600 * 10**9)


def opened(folder: Path) -> StateFile:
    file = StateFile(folder, MOST_BYTES)
    file.claim()
    return file


def take_calls(folder: Path, sessions: int, prompt: int, records: int) -> dict[str, Any]:
    """Sessions of one branch with so many records, a call of each; saved batch by batch."""
    table, _ = tables()
    file = opened(folder)
    file.read()
    file.write([index_change(table.seed, table.block_tokens)])
    table.notes.begin()
    spent: dict[str, list[float]] = {"call": [], "loop": [], "thread": []}
    epoch = time.time_ns() - time.monotonic_ns()
    for begin in range(0, sessions, BATCH):
        names = range(begin, min(sessions, begin + BATCH))
        since = time.thread_time()
        for record in range(records):
            for name in names:
                call_of(table, f"s{name}", name, prompt, record)
        spent["call"].append((time.thread_time() - since) / records)
        since = time.thread_time()
        changes = table.notes.take(epoch)
        spent["loop"].append(time.thread_time() - since)
        since = time.thread_time()
        file.write(session_changes(changes))
        spent["thread"].append(time.thread_time() - since)
    file.close()
    each = {name: median(seconds) / BATCH * 1e6 for name, seconds in spent.items()}
    return {
        "what": f"{sessions} sessions, {prompt} ids, {records} records",
        "call us": each["call"],
        "loop us": each["loop"],
        "of a call": each["loop"] / each["call"],
        "slowest batch ms": max(spent["loop"]) * 1e3,
        "thread us": each["thread"],
    }


def call_of(table: SessionTable, session: str, name: int, prompt: int, record: int) -> None:
    """Each of a session's prompts starts over, so that all of their records stay."""
    tokens = np.full(prompt, name, np.int32)
    tokens[:2] = name, record
    now = time.monotonic_ns()
    call = table.begin("tenant", "model", SessionClaim(session), tokens, prompt, now)
    table.finished(call, "cold-0", tokens[:100], 0, 64, now)


def write_responses(folder: Path, content: int) -> dict[str, Any]:
    _, responses = tables()
    file = opened(folder)
    file.read()
    responses.notes.begin()
    count = content // (2 * BODY_BYTES)
    random, thread, loop = Random(1), 0.0, 0.0
    for begin in range(0, count, BATCH):
        for number in range(begin, min(count, begin + BATCH)):
            body = random.randbytes(BODY_BYTES)
            turn = Turn(None, body[:100], body)
            claim, now = SessionClaim(f"s{number}"), time.monotonic_ns()
            responses.add("tenant", f"resp_{number:032x}", claim, now, turn=turn, body=body)
        since = time.thread_time()
        changes = responses.notes.take(time.time_ns() - time.monotonic_ns())
        loop += time.thread_time() - since
        since = time.thread_time()
        file.write(response_changes(changes, set()))
        thread += time.thread_time() - since
    file.close()
    return {
        "what": f"{count} responses, {content >> 20} MiB",
        "loop us": loop / count * 1e6,
        "thread us": thread / count * 1e6,
    }


def load(folder: Path, count: int, content: int) -> dict[str, Any]:
    begin = time.perf_counter()
    size = len((folder / NAME).read_bytes())
    bare = time.perf_counter() - begin
    sessions, responses = tables()
    keeper = StateKeeper(folder, MOST_BYTES, sessions, responses)
    begin = time.perf_counter()
    asyncio.run(keeper.start())
    seconds = time.perf_counter() - begin
    keeper.stop()
    if (len(sessions), responses.size >= content - 4 * BODY_BYTES) != (count, True):
        raise SystemExit(f"only {len(sessions)} sessions and {responses.size} bytes came back")
    return {
        "what": f"a start with a file of {size >> 20} MiB",
        "seconds": seconds,
        "times a bare read": seconds / bare,
    }


if __name__ == "__main__":
    sys.exit(main())
