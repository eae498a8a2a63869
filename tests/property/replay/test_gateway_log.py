"""What a gateway records of any sessions is read back with their lengths, order and sharing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.gateway.routing.identity import Claim, Source
from alipes.gateway.routing.paths import common_prefix
from alipes.gateway.routing.sessions import SessionTable
from alipes.gateway.telemetry.recording import RecordedCall, Recording
from alipes.instance.contract import TokenIds
from alipes.replay.traces.check import check
from alipes.replay.traces.gateway_log import read

BLOCK = 64
SECOND = 1_000_000_000


@dataclass
class Client:
    """A branch as its client knows it: the context so far, and (prompt, context before it) of each
    call."""

    session: str
    name: str
    parent: Client | None
    context: TokenIds
    calls: list[tuple[TokenIds, TokenIds]] = field(default_factory=list)


@dataclass
class World:
    """A session table and a recording, asked one call after another."""

    data: st.DataObject
    lines: list[bytes] = field(default_factory=lambda: [Recording.header(5.0)])
    clients: list[Client] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        self.table = SessionTable(1000, 3600.0, Random(1).randbytes)
        self.recording = Recording(b"key", 0)
        self.random = Random(2)

    def tokens(self, count: int) -> TokenIds:
        return np.array([self.random.randrange(1000) for _ in range(count)], np.int32)

    def begin(self, number: int) -> None:
        system = np.arange(100 + 64 * (number % 2), dtype=np.int32)
        self.clients.append(Client(f"s{number}", "", None, system))

    def spawn(self, parent: Client) -> None:
        whole = self.data.draw(st.booleans())
        context = parent.context if whole else np.arange(70, dtype=np.int32)
        self.clients.append(Client(parent.session, f"b{len(self.clients)}", parent, context))

    def call(self, client: Client) -> None:
        kept = len(client.context)
        if self.data.draw(st.integers(0, 4)) == 0:
            kept = self.data.draw(st.integers(0, kept))
        added = self.tokens(self.data.draw(st.integers(1, 150)))
        prompt = np.concatenate((client.context[:kept], added))
        reply = self.tokens(self.data.draw(st.integers(1, 70)))
        before = client.context if client.calls else self.inherited(client)
        client.calls.append((prompt, before))
        client.context = np.concatenate((prompt, reply))
        claim = Claim(client.session, client.name, self.parent_name(client), source=Source.OWN)
        begun = self.table.begin("t", "m", claim, prompt, len(prompt), self.now)
        arrived, self.now = self.now, self.now + SECOND
        self.table.finished(begun, "i", reply, 0, 0, self.now)
        recorded = RecordedCall(
            tenant="t",
            model="m",
            session=begun.session,
            branch=begun.branch,
            number=begun.number,
            parent=begun.origin,
            parent_calls=begun.origin_calls,
            arrived=arrived,
            begun=arrived,
            ended=self.now,
            prompt=len(prompt),
            kept=begun.kept_tokens,
            drawn=reply.tolist(),
            stop_ids=(),
            keys=begun.path.keys("f")[math.ceil(begun.kept_tokens / BLOCK) :],
        )
        self.lines.append(self.recording.line(recorded))
        self.now += self.data.draw(st.integers(0, 3)) * SECOND

    def inherited(self, client: Client) -> TokenIds:
        none = np.empty(0, np.int32)
        return client.parent.context if client.parent is not None else none

    @staticmethod
    def parent_name(client: Client) -> str:
        return client.parent.name if client.parent is not None else ""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_lengths_kept_prefixes_and_shared_blocks_are_exact(data: st.DataObject) -> None:
    world = World(data)
    for number in range(data.draw(st.integers(1, 3))):
        world.begin(number)
        world.call(world.clients[-1])
    for _ in range(data.draw(st.integers(0, 10))):
        client = data.draw(st.sampled_from(world.clients))
        if data.draw(st.integers(0, 2)) == 0 and client.calls and len(client.name) < 4:
            world.spawn(client)
            client = world.clients[-1]
        world.call(client)
    trace = read(Path("calls.jsonl"), b"".join(world.lines))
    check(trace, Path("calls.jsonl"))
    found = [branch for session in trace.sessions for branch in session.branches]
    # Both in the order in which sessions began, and in each its branches.
    clients = sorted(world.clients, key=lambda client: client.session)
    assert len(found) == len(clients)
    owners: dict[int, bytes] = {}
    for branch, client in zip(found, clients, strict=True):
        assert [call.prompt for call in branch.calls] == [len(prompt) for prompt, _ in client.calls]
        for call, (prompt, before) in zip(branch.calls, client.calls, strict=True):
            assert call.kept == common_prefix(prompt, before)
            place = call.kept
            for span in call.added:
                if span.stream >= 0:
                    # A block stands for all that comes before it too.
                    begins = prompt[: place + span.length].tobytes()
                    assert owners.setdefault(span.stream, begins) == begins
                place += span.length
    assert len(set(owners.values())) == len(owners)
