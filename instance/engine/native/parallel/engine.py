"""The first rank of a divided model: an engine like any other to whoever drives it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from alipes.instance.contract import InstanceSettings, ModelReport
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.parallel.group import Group
from alipes.instance.engine.native.parallel.links import FOLLOWER, Link
from alipes.instance.engine.native.parallel.messages import (
    Activate,
    Close,
    CopyIn,
    CopyOut,
    Here,
    Ready,
    Restored,
    Stage,
    Start,
    Switched,
    ToRank,
    Undo,
    to_wire,
)
from alipes.instance.engine.native.parallel.share import Share, settings_of_rank
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    EngineError,
    EngineFacts,
    HostSlabs,
    Row,
    Sampled,
    Staged,
    SwitchReport,
)
from alipes.instance.memory.agreement import Agreement

_POLL_SECONDS: Final = 0.001
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds: how long a copy to the host may take before what is known of it must do, and
    how long a rank may keep the others waiting before it counts as lost."""

    copy: float = 10.0
    rank: float = 60.0


class ParallelEngine:
    """Implements ``Engine`` over ``settings.ranks`` processes, of which this is the first: it
    tells the others all that it is told itself, and all compute their part of every step.
    Raises ``RankLost`` as soon as it notices that one is gone or does not answer; what the
    instance holds is of no use then. ``follower`` is the command of the others' processes."""

    def __init__(
        self,
        settings: InstanceSettings,
        follower: Sequence[str] = FOLLOWER,
        patience: Patience = Patience(),
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if settings.device != "cpu":
            raise EngineError(f"device {settings.device}: models are divided on the CPU alone")
        self._clock: Final = clock
        self._ranks: Final = settings.ranks
        self._agreement: Final = Agreement(settings.ranks, round(patience.copy * _SECOND))
        self._links: list[Link] = []
        self._active = ""
        with ExitStack() as built:
            folder = built.enter_context(tempfile.TemporaryDirectory(prefix="alipes-ranks-"))
            memory = os.memfd_create("alipes-host")
            built.callback(os.close, memory)
            try:
                self._start(settings_of_rank(settings), follower, patience.rank, memory, folder)
            except BaseException:
                self._close_links()
                raise

    def _start(
        self,
        own: InstanceSettings,
        follower: Sequence[str],
        seconds: float,
        memory: int,
        folder: str,
    ) -> None:
        meeting, ranks = f"{folder}/ranks", self._ranks
        for rank in range(1, ranks):
            self._links.append(Link(follower, rank, seconds, memory))
            self._links[-1].send(Start(own, rank, ranks, meeting, seconds))
        for link in self._links:
            link.answer(Here)
        with self._together():
            group = Group(Path(meeting), Share(0, ranks), seconds, memory)
            self._engine = NativeEngine(own, group=group)
        ready = [link.answer(Ready) for link in self._links]
        self._reports = _reports(self._engine.reports, [other.reports for other in ready])
        if any(other.host != self._engine.host for other in ready):
            raise EngineError(f"the ranks of {own.name} differ in memory: that is a defect")

    @property
    def kind(self) -> str:
        return self._engine.kind

    @property
    def reports(self) -> tuple[ModelReport, ...]:
        return self._reports

    @property
    def host(self) -> HostSlabs:
        return self._engine.host

    @property
    def about(self) -> EngineFacts:
        """Of this rank; the others have as much of everything."""
        return self._engine.about

    def activate(self, model: str) -> SwitchReport:
        """As slow as its slowest rank, whose report it is."""
        if all(report.name != model for report in self._reports):
            raise EngineError(f"model {model} is not one of this instance's")
        if self._agreement.pending:
            raise EngineError(f"copies are under way: drain them before {model} becomes active")
        # There is a verdict on all copies: one that still goes on here has come too late.
        self._engine.drain()
        self._tell(Activate(model))
        switched = [self._engine.activate(model)]
        switched += [link.answer(Switched).report for link in self._links]
        self._active = model
        slowest = max(switched, key=lambda report: report.seconds)
        return replace(slowest, addresses_kept=all(report.addresses_kept for report in switched))

    def stage(self, following: str | None, rows: int) -> Staged:
        """What this rank has staged stands for all."""
        if not self._active:
            return Staged()
        self._tell(Stage(following, rows))
        return self._engine.stage(following, rows)

    def expect(self, model: str, grammar: str) -> None:
        """What is drawn is this rank's affair alone."""
        self._engine.expect(model, grammar)

    def step(self, rows: Sequence[Row]) -> tuple[Sampled, ...]:
        self._check_active()
        self._tell(to_wire(rows))
        try:
            with self._together():
                return self._engine.step(rows)
        except EngineError:
            self._tell(Undo())
            raise

    def copy_out(self, ticket: int, copies: Sequence[BlockCopy]) -> None:
        self._engine.copy_out(ticket, copies)
        self._tell(CopyOut(ticket, tuple(copies)))
        self._agreement.begin(ticket, len(copies), self._clock())

    def copied(self) -> tuple[CopyEnd, ...]:
        """Verdicts of all ranks on their copies."""
        for held in self._engine.held():
            self._agreement.report(0, held.ticket, held.marks, held.ended)
        for link in self._links:
            for held in link.reports():
                self._agreement.report(link.rank, held.ticket, held.marks, held.ended)
        return self._agreement.decided(self._clock())

    def drain(self) -> tuple[CopyEnd, ...]:
        ends = list(self.copied())
        while self._agreement.pending:
            time.sleep(_POLL_SECONDS)
            ends += self.copied()
        return tuple(ends)

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        """Waits for all ranks: the others read slabs that this one writes."""
        self._check_active()
        self._tell(CopyIn(tuple(copies)))
        self._engine.copy_in(copies)
        for link in self._links:
            link.answer(Restored)

    def close(self) -> None:
        for link in self._links:
            link.dismiss(Close())
        self._close_links()
        self._engine.close()

    def _check_active(self) -> None:
        if not self._active:
            raise EngineError("no model is active: activate one first")

    def _tell(self, message: ToRank) -> None:
        for link in self._links:
            link.send(message)

    def _close_links(self) -> None:
        for link in self._links:
            link.close()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What all ranks do at once fails in each when it fails in one: find out in which."""
        try:
            yield
        except EngineError:
            raise
        except RuntimeError as error:
            for link in self._links:
                link.ask_why(error)
            raise


def _reports(
    own: tuple[ModelReport, ...], others: list[tuple[ModelReport, ...]]
) -> tuple[ModelReport, ...]:
    """Of one rank, under formats that name the shares of all. Raises ``EngineError`` where ranks
    have not the same room."""
    together = []
    for reports in zip(own, *others, strict=True):
        if len({msgspec.structs.replace(report, kv_format="") for report in reports}) > 1:
            raise EngineError(f"the ranks differ in {reports[0].name}: that is a defect")
        digest = hashlib.blake2b(
            "\n".join(report.kv_format for report in reports).encode(), digest_size=16
        ).hexdigest()
        name = f"{digest}:{len(reports)} ranks:{reports[0].kv_format.partition(':')[2]}"
        together.append(msgspec.structs.replace(reports[0], kv_format=name))
    return tuple(together)
