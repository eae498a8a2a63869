"""A rank other than the first: a process that does what the first one tells it.

Started as ``python -P -m alipes.instance.engine.native.parallel.follower FD MEMORY``, both
inherited: a connected stream socket, and the file in memory that all ranks share.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from typing import Final

from alipes.instance.contract import thread_environment
from alipes.instance.engine.native.parallel.channel import Channel, ChannelClosed
from alipes.instance.engine.native.parallel.messages import (
    Broken,
    Close,
    Here,
    Ready,
    Start,
    ToRank,
)
from alipes.instance.engine.protocol import EngineError

SEND_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 3600.0
COPY_POLL_SECONDS: Final = 0.002

log = logging.getLogger("alipes.instance.rank")


def follow(channel: Channel, memory: int) -> int:
    """Until told to close, or until nobody is there to tell; the exit code."""
    try:
        start = channel.receive(SEND_SECONDS)
        if isinstance(start, Start):
            _serve(channel, start, memory)
    except ChannelClosed:
        log.info("the first rank is gone")
    except Exception as error:
        if not isinstance(error, EngineError):
            log.exception("this rank has failed")
        _tell_last(channel, Broken(str(error) or repr(error), isinstance(error, EngineError)))
        return 1
    return 0


def _serve(channel: Channel, start: Start, memory: int) -> None:
    os.environ.update(thread_environment(start.settings.threads))
    from alipes.instance.engine.native.parallel.rank import Rank

    channel.send(Here())
    rank = Rank(start, memory)
    channel.send(Ready(rank.engine.reports, rank.engine.host))
    while True:
        copying = rank.engine.copying
        message = channel.receive(COPY_POLL_SECONDS if copying else IDLE_SECONDS)
        if isinstance(message, Close):
            break
        answer = rank.do(message) if message is not None else None
        for said in (*rank.engine.held(), answer):
            if said is not None:
                channel.send(said)
    rank.engine.close()


def _tell_last(channel: Channel, broken: Broken) -> None:
    try:
        channel.send(broken)
    except ChannelClosed:
        log.info("the first rank is gone")


def main() -> None:
    # A terminal's interrupt is for the first rank, which ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s"
    )
    fd, memory = map(int, sys.argv[1:])
    code = follow(Channel(socket.socket(fileno=fd), ToRank, SEND_SECONDS), memory)
    logging.shutdown()
    # The first rank waits, and there is nothing left for an orderly end to do.
    os._exit(code)


if __name__ == "__main__":
    main()
