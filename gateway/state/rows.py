"""Rows of sessions and responses as the file's keys and data, and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from alipes.gateway.api.openai.responses.saved import (
    ResponseChanges,
    ResponseKey,
    ResponseRow,
    SavedResponses,
    TurnRow,
    responses_of,
)
from alipes.gateway.routing.saved import BranchRow, SavedSessions, SessionChanges, SessionRow
from alipes.gateway.state.file import BrokenError, Change, Rows

_INDEX: Final = b"index"
_NUMBER_BYTES: Final = 8
_encode: Final = msgspec.msgpack.encode
_decode: Final = msgspec.msgpack.decode


class _IndexRow(msgspec.Struct, frozen=True):
    """Of the sessions' prefix index."""

    seed: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file held."""

    sessions: SavedSessions
    responses: SavedResponses


def index_change(seed: int, block_tokens: int) -> Change:
    """What a new file begins with."""
    return "meta", _INDEX, _encode(_IndexRow(seed, block_tokens))


def session_changes(changes: SessionChanges) -> Iterator[Change]:
    for key, session in changes.sessions.items():
        yield "session", _encode(key), None if session is None else _encode(session)
    for branch_id, branch in changes.branches.items():
        yield "branch", branch_id, None if branch is None else _encode(branch.row())


def response_changes(changes: ResponseChanges, left_out: set[int]) -> Iterator[Change]:
    """Without the turns that are ``left_out``, and those that go on from them: what has such a one
    keeps its session alone. Those that are gone are not left out any more."""
    for number, turn in sorted(changes.turns.items()):
        if turn is None:
            left_out.discard(number)
        elif turn.before in left_out:
            left_out.add(number)
        if number not in left_out:
            data = None if turn is None else _encode(turn)
            yield "turn", number.to_bytes(_NUMBER_BYTES, "big"), data
    for key, row in changes.responses.items():
        if row is not None and row.turn in left_out:
            row = msgspec.structs.replace(row, turn=0)  # noqa: PLW2901
        yield "response", _encode(key), None if row is None else _encode(row)
    for key, body in changes.bodies.items():
        response = changes.responses[key]
        if response is None or response.turn not in left_out:
            yield "body", _encode(key), body


def saved_of(rows: Rows) -> Saved | None:
    """None for a new file. Raises ``BrokenError`` for rows that cannot be understood."""
    try:
        return _saved(rows) if rows["meta"] else None
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise BrokenError(f"its rows cannot be read: {error}") from None


def _saved(rows: Rows) -> Saved:
    index = _decode(rows["meta"][_INDEX], type=_IndexRow)
    sessions = SavedSessions(
        index.seed,
        index.block_tokens,
        [_decode(data, type=SessionRow) for data in rows["session"].values()],
        [_decode(data, type=BranchRow) for data in rows["branch"].values()],
    )
    responses = SavedResponses(
        [_decode(data, type=ResponseRow) for data in rows["response"].values()],
        {_decode(key, type=ResponseKey): data for key, data in rows["body"].items()},
        {
            int.from_bytes(key, "big"): _decode(data, type=TurnRow)
            for key, data in rows["turn"].items()
        },
    )
    responses_of(responses, 0, 0)  # they belong together
    return Saved(sessions, responses)
