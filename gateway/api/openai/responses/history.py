"""What a request builds on: the response that it continues and the items that came before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from alipes.gateway.api.errors import ApiError, invalid
from alipes.gateway.api.openai.responses.kept import Kept, Turn
from alipes.gateway.api.openai.responses.schema import Item, ResponsesBody
from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.conversation.content import string_of

_ITEM_ID: Final = re.compile(r"(?:msg|fc|rs|ctc)_(?P<suffix>[0-9a-f]{32})_[0-9]+")
_SHOWN: Final = 64
_items: Final = msgspec.json.Decoder(list[Item])


@dataclass(frozen=True, slots=True)
class History:
    """``continues`` is the response that this one follows, in its session; ``turn`` the
    conversation to go on with, of items ``before``; ``asked`` are those of the request itself."""

    continues: Kept | None
    turn: Turn | None
    before: list[Item]
    asked: list[Item]


def response_id_of(suffix: str) -> str:
    return f"resp_{suffix}"


def history_of(store: ResponseStore, tenant: str, body: ResponsesBody, now: int) -> History:
    """Raises a 400 for a response or an item that is not kept here.

    Without ``previous_response_id`` a request may still repeat items of an earlier response,
    as clients do that store nothing here: their ids tell which one it continues."""
    asked = _asked(store, tenant, body, now)
    previous = body.previous_response_id
    if previous is None:
        return History(_repeated(store, tenant, asked, now), None, [], asked)
    kept = store.find(tenant, previous, now)
    if kept is None or kept.turn is None:
        raise _no_previous(
            previous, "is not kept here (any more)" if kept is None else "not stored"
        )
    before = [item for items in kept.turn.conversation() for item in _items.decode(items)]
    return History(kept, kept.turn, before, asked)


def _asked(store: ResponseStore, tenant: str, body: ResponsesBody, now: int) -> list[Item]:
    if isinstance(body.input, str):
        return [Item(type="message", role="user", content=body.input)]
    return [
        _referenced(store, tenant, string_of(item.id), f"input[{i}].id", now)
        if item.type == "item_reference"
        else item
        for i, item in enumerate(body.input)
    ]


def _referenced(store: ResponseStore, tenant: str, item_id: str, place: str, now: int) -> Item:
    kept = _maker(store, tenant, item_id, now)
    for item in _items.decode(kept.turn.answered) if kept and kept.turn else ():
        if item.id == item_id:
            return item
    shown = item_id[:_SHOWN]
    raise invalid(place, f"item {shown!r} is not stored here: send it whole", "item_not_found")


def _repeated(store: ResponseStore, tenant: str, asked: list[Item], now: int) -> Kept | None:
    last = next(
        (string_of(item.id) for item in reversed(asked) if _ITEM_ID.fullmatch(string_of(item.id))),
        None,
    )
    return _maker(store, tenant, last, now) if last else None


def _maker(store: ResponseStore, tenant: str, item_id: str, now: int) -> Kept | None:
    """The response that has the item."""
    match = _ITEM_ID.fullmatch(item_id)
    return store.find(tenant, response_id_of(match["suffix"]), now) if match else None


def _no_previous(response_id: str, why: str) -> ApiError:
    shown = response_id[:_SHOWN]
    return invalid(
        "previous_response_id",
        f"response {shown!r} {why}; send the whole conversation as input instead",
        "previous_response_not_found",
    )
