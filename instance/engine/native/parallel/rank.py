"""What a rank other than the first does when it is told to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import torch

from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.graphs import Uncommitted
from alipes.instance.engine.native.parallel.group import Group
from alipes.instance.engine.native.parallel.messages import (
    Activate,
    CopyIn,
    CopyOut,
    Restored,
    Stage,
    Start,
    Step,
    Switched,
    ToRank,
    Undo,
    from_wire,
)
from alipes.instance.engine.native.parallel.share import Share
from alipes.instance.engine.protocol import EngineError

log = logging.getLogger("alipes.instance.rank")


class Rank:
    """Meets the other ranks and loads its share of every model; ``memory`` is the file that they
    have in common. Raises ``EngineError``."""

    def __init__(self, start: Start, memory: int) -> None:
        share = Share(start.rank, start.ranks)
        group = Group(Path(start.meeting), share, start.seconds, memory)
        self.engine: Final = NativeEngine(start.settings, group=group)
        # A step that counts unless the next thing that is told is that it does not.
        self._step: Uncommitted | None = None

    def do(self, message: ToRank) -> Switched | Restored | None:
        self._settle(undo=isinstance(message, Undo))
        match message:
            case Step():
                self._compute(message)
            case Activate(model):
                # There is a verdict on all copies: those that go on here have come too late.
                self.engine.drain()
                return Switched(self.engine.activate(model))
            case Stage(following, rows):
                self.engine.stage(following, rows)
            case CopyOut(ticket, copies):
                self.engine.copy_out(ticket, copies)
            case CopyIn(copies):
                self.engine.copy_in(copies)
                return Restored()
        return None

    def _settle(self, undo: bool) -> None:
        step, self._step = self._step, None
        if step is not None and not undo:
            with torch.inference_mode():
                step.commit()

    def _compute(self, message: Step) -> None:
        try:
            self._step, _ = self.engine.compute(from_wire(message))
        except EngineError as error:
            # The first rank refuses such rows too, and answers for them.
            log.info("a step was refused: %s", error)
