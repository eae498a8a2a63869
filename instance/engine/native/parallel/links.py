"""The first rank's side of the others: their processes and what they say."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

from alipes.instance.engine.native.parallel.channel import Channel, ChannelClosed
from alipes.instance.engine.native.parallel.messages import Broken, FromRank, Held, ToRank
from alipes.instance.engine.protocol import EngineError

FOLLOWER: Final = (sys.executable, "-P", "-m", "alipes.instance.engine.native.parallel.follower")
_END_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 1.0

Answer = TypeVar("Answer", bound=FromRank)


class RankLost(RuntimeError):
    """A rank is gone or does not answer. What it held is lost, so the instance must end; the
    message names the rank."""


class Link:
    """One rank's process, started with ``command``, the number of its socket and that of the file
    ``memory``, both of which it inherits."""

    def __init__(self, command: Sequence[str], rank: int, seconds: float, memory: int) -> None:
        self.rank: Final = rank
        self._held: list[Held] = []
        self._seconds: Final = seconds
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            arguments = [*command, str(fd), str(memory)]
            self._process = subprocess.Popen(arguments, pass_fds=[fd, memory])
        self._channel = Channel(ours, FromRank, seconds)

    def send(self, message: ToRank) -> None:
        try:
            self._channel.send(message)
        except ChannelClosed as error:
            raise self._lost(str(error)) from error

    def reports(self) -> list[Held]:
        """What it has said of copies since this was last asked."""
        while self._listen(0.0) is not None:
            pass
        held, self._held = self._held, []
        return held

    def answer(self, kind: type[Answer]) -> Answer:
        """Its next message of this kind."""
        deadline = time.monotonic() + self._seconds
        while (left := deadline - time.monotonic()) > 0:
            message = self._listen(left)
            if isinstance(message, kind):
                return message
        raise self._lost(f"no answer in {self._seconds:g} s")

    def ask_why(self, error: RuntimeError) -> None:
        """Raises where this is the rank because of which all have failed with ``error``."""
        deadline = time.monotonic() + _LAST_SECONDS
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._listen(left)
        except RankLost as lost:
            raise lost from error
        if "Timed out" in str(error):
            raise self._lost("no answer in a step") from error

    def _listen(self, seconds: float) -> FromRank | None:
        """What it has said within ``seconds``; reports on copies are kept in ``held`` too."""
        try:
            message: FromRank | None = self._channel.receive(seconds)
        except ChannelClosed as error:
            raise self._lost(str(error)) from error
        match message:
            case Held():
                self._held.append(message)
            case Broken(reason, refused=True):
                raise EngineError(f"rank {self.rank}: {reason}")
            case Broken(reason):
                raise self._lost(reason)
        return message

    def _lost(self, reason: str) -> RankLost:
        try:
            state = f"exit code {self._process.wait(_LAST_SECONDS)}"
        except subprocess.TimeoutExpired:
            state = "it still runs"
        return RankLost(f"rank {self.rank} is lost ({reason}; {state}): start the instance again")

    def dismiss(self, last: ToRank) -> None:
        """Tell it to end, if it is there to hear it."""
        with suppress(ChannelClosed):
            self._channel.send(last)

    def close(self) -> None:
        """The process ends, because its socket is closed or because it must."""
        self._channel.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
