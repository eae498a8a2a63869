"""Bailian's traces of chats, JSONL: a request a line, whose ``parent_chat_id`` is the request
before it in its conversation.

Stamps are in seconds, blocks of 16 tokens. A prompt is whole. What a provider's template makes of
a reply when it comes back is not told, so a call keeps what its hash ids have in common with
those of the request before it, and no more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces.form import MAIN, Branch, Call, Session, Trace, Wait
from alipes.replay.traces.hash_ids import BlockNames, SessionBlocks, common
from alipes.replay.traces.lines import Length, Prompt, Time, line_error, rows, scope_of, stem
from alipes.replay.traces.mooncake import check_blocks
from alipes.replay.traces.spans import new_content
from alipes.replay.traces.stamps import aligned

REMEDY: Final = "expected Bailian's JSONL (chat_id, parent_chat_id, timestamp in s, hash_ids)"
BLOCK: Final = 16


class Row(msgspec.Struct, frozen=True):
    chat_id: int
    timestamp: Time
    input_length: Prompt
    output_length: Length
    parent_chat_id: int = -1
    hash_ids: list[int] = []


DECODER = msgspec.json.Decoder(Row)
Numbered = tuple[int, Row]


def read(path: Path, data: bytes) -> Trace:
    """Raises ``TraceError``. Of several requests after the same one, the first goes on with its
    conversation and the others begin one of their own."""
    names = BlockNames(BLOCK, scope_of(data))
    chains: dict[int, list[Numbered]] = {}
    heads: dict[int, list[Numbered]] = {}
    for number, row in rows(path, data, DECODER, REMEDY):
        check_blocks(path, number, row.input_length, row.hash_ids, BLOCK)
        if row.chat_id in chains:
            problem = f"{row.chat_id} is also the id of line {chains[row.chat_id][-1][0]}"
            raise line_error(path, number, "chat_id", problem, REMEDY)
        chain = chains.get(row.parent_chat_id)
        if chain is None or chain[-1][1].chat_id != row.parent_chat_id:
            chain = heads[number] = []
        chain.append((number, row))
        chains[row.chat_id] = chain
    made = [(line, _session(f"{stem(path)}-{line}", chain, names)) for line, chain in heads.items()]
    return Trace(path.name, aligned(path, made))


def _session(name: str, chain: list[Numbered], names: BlockNames) -> Session:
    blocks = SessionBlocks(names)
    calls: list[Call] = []
    before: Row | None = None
    for index, (_, row) in enumerate(chain):
        length, kept, gap = row.input_length, 0, 0.0
        if before is not None:
            most = min(before.input_length, length) // BLOCK
            kept = common(before.hash_ids, row.hash_ids, most) * BLOCK
            gap = max(0.0, round(row.timestamp - before.timestamp, 6))
        added = blocks.content(row.hash_ids, kept, length, new_content(MAIN, index))
        wait = Wait.USER if index else Wait.START
        calls.append(Call(length, max(1, row.output_length), kept, added, gap, wait))
        before = row
    return Session(name, (Branch(MAIN, tuple(calls)),), start=chain[0][1].timestamp)
