from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from alipes.instance.engine.native.parallel.channel import Channel, ChannelClosed
from alipes.instance.engine.native.parallel.messages import Activate, Close, ToRank


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, ToRank, send_seconds=0.1)
    yield channel, theirs
    channel.close()
    theirs.close()


def wire(*messages: ToRank) -> bytes:
    """What a channel sends for them."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours, ToRank, send_seconds=1.0)
        for message in messages:
            channel.send(message)
        channel.close()
        return theirs.recv(1 << 16)


def test_messages_come_whole_and_in_order(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    sent = wire(Activate("a"), Close(), Activate("b" * 300))
    assert channel.receive(0.0) is None
    theirs.sendall(sent[:3])
    assert channel.receive(0.01) is None
    theirs.sendall(sent[3:20])
    assert channel.receive(1.0) == Activate("a")
    theirs.sendall(sent[20:])
    assert channel.receive(1.0) == Close()
    assert channel.receive(1.0) == Activate("b" * 300)
    assert channel.receive(0.0) is None


def test_a_large_message_passes(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    large = Activate("x" * 3_000_000)
    other = Channel(theirs.dup(), ToRank, send_seconds=5.0)
    sender = threading.Thread(target=other.send, args=(large,))
    sender.start()
    assert channel.receive(5.0) == large
    sender.join()
    other.close()


def test_an_end_that_is_gone_or_does_not_read(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    with pytest.raises(ChannelClosed, match="timed out"):
        channel.send(Activate("x" * 3_000_000))
    theirs.close()
    with pytest.raises(ChannelClosed):
        channel.receive(1.0)
    with pytest.raises(ChannelClosed):
        channel.send(Close())
