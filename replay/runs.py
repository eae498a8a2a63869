"""A run on disk: one folder, whatever made it, a live replay or the simulator.

``run.json`` says what ran; ``calls.jsonl`` has a ``CallRecord`` a line, and where the run could see
inside instances ``switches.jsonl``, ``rounds.jsonl`` and ``memory.jsonl`` a record a line each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from alipes.replay.files import write_whole
from alipes.replay.records import CallRecord

FORM: Final = 1
RUN_FILE: Final = "run.json"
CALLS_FILE: Final = "calls.jsonl"
SWITCHES_FILE: Final = "switches.jsonl"
ROUNDS_FILE: Final = "rounds.jsonl"
MEMORY_FILE: Final = "memory.jsonl"

T = TypeVar("T")


class RunInfo(msgspec.Struct, frozen=True):
    """What ran. Runs of the same ``scenario`` and sessions are compared by ``configuration``;
    ``kind`` is live or simulated; a live one was against ``endpoint``. ``hardware`` names a profile
    or a machine. ``bound`` has, by session, the seconds that it takes at least, where that is
    known; ``planned`` how many of its calls were to count, so that a session which an interruption
    cut short is not taken for a whole one. ``counters`` are totals of the cluster since the warm-up
    ended; ``published`` is what a paper says of this configuration, by the figure's name.
    ``complete`` is false for an interrupted run."""

    scenario: str
    configuration: str
    kind: str
    hardware: str = ""
    trace: str = ""
    seed: int = 0
    seconds: float = 0.0
    complete: bool = True
    settings: dict[str, str] = {}
    counters: dict[str, float] = {}
    bound: dict[str, float] = {}
    planned: dict[str, int] = {}
    published: dict[str, float] = {}
    published_source: str = ""
    endpoint: str = ""
    form: int = FORM


class SwitchRecord(msgspec.Struct, frozen=True):
    """One model switch: ``path`` is h2d, partial, d2d or remap; ``at`` is its begin in seconds
    since the run began."""

    instance: str
    at: float
    model: str
    path: str
    seconds: float
    h2d_bytes: int = 0
    d2d_bytes: int = 0


class RoundRecord(msgspec.Struct, frozen=True):
    """One round of one instance: seconds of it by what the instance did (see ``Parts`` for the
    words); ``idle`` and ``linger`` are those in which it did nothing, ``down`` those in which it
    was gone or hung."""

    instance: str
    index: int
    at: float
    seconds: float
    prefill: float = 0.0
    decode: float = 0.0
    switch: float = 0.0
    restore: float = 0.0
    linger: float = 0.0
    idle: float = 0.0
    down: float = 0.0
    sp_admitted: int = 0
    sp_parked: int = 0

    @property
    def active(self) -> float:
        return self.prefill + self.decode + self.restore


class MemoryRecord(msgspec.Struct, frozen=True):
    """Device and host bytes of one instance at ``at`` seconds, all devices of it together."""

    instance: str
    at: float
    weights: int
    kv: int
    staged: int
    runtime: int
    capacity: int
    host_kv: int = 0


class RunError(Exception):
    """A folder holds no readable run; one line says which file, what is wrong and what to do."""


class Run(msgspec.Struct, frozen=True):
    """A whole run as reports see it; ``folder`` is where it lies."""

    folder: str
    info: RunInfo
    calls: tuple[CallRecord, ...]
    switches: tuple[SwitchRecord, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()

    @property
    def counted(self) -> tuple[CallRecord, ...]:
        """The calls that figures count: warm-up left out."""
        return tuple(call for call in self.calls if not call.warmup)

    @property
    def warmed(self) -> float:
        """The second at which the last warm-up call ended; 0 without any."""
        return max((call.finished for call in self.calls if call.warmup), default=0.0)

    def measured(self) -> Run:
        """The run without its warm-up: the calls that count, what instances did from its end on,
        and the memory that they held then."""
        begin = self.warmed
        if not begin:
            return self
        held = {one.instance: replace(one, at=begin) for one in self.memory if one.at < begin}
        return replace(
            self,
            calls=self.counted,
            switches=tuple(one for one in self.switches if one.at >= begin),
            rounds=tuple(one for one in self.rounds if one.at >= begin),
            memory=(*held.values(), *(one for one in self.memory if one.at >= begin)),
        )


def write_run(folder: Path, run: Run) -> None:
    """Write a finished run in place of any that the folder holds."""
    folder.mkdir(parents=True, exist_ok=True)
    # Calls of one run never stand beside the description of another.
    (folder / RUN_FILE).unlink(missing_ok=True)
    files = {
        CALLS_FILE: run.calls,
        SWITCHES_FILE: run.switches,
        ROUNDS_FILE: run.rounds,
        MEMORY_FILE: run.memory,
    }
    for name, records in files.items():
        if records or name == CALLS_FILE:
            write_whole(folder / name, msgspec.json.Encoder().encode_lines(records))
        else:
            (folder / name).unlink(missing_ok=True)
    write_info(folder, run.info)


def write_info(folder: Path, info: RunInfo) -> None:
    write_whole(folder / RUN_FILE, msgspec.json.format(msgspec.json.encode(info)) + b"\n")


def read_run(folder: Path) -> Run:
    """Raises ``RunError``."""
    return Run(
        str(folder),
        _decode(folder / RUN_FILE, _bytes(folder / RUN_FILE), RunInfo),
        _lines(folder / CALLS_FILE, CallRecord, required=True),
        _lines(folder / SWITCHES_FILE, SwitchRecord),
        _lines(folder / ROUNDS_FILE, RoundRecord),
        _lines(folder / MEMORY_FILE, MemoryRecord),
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(
            f"{path}: {error.strerror}; give a folder that `alipes replay` or"
            " `alipes simulate` wrote"
        ) from None


def _decode(path: Path, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise RunError(f"{path}: {error}; write the run anew") from None


def _lines(path: Path, kind: type[T], required: bool = False) -> tuple[T, ...]:
    if not required and not path.exists():
        return ()
    decoder = msgspec.json.Decoder(kind)
    try:
        return tuple(decoder.decode_lines(_bytes(path)))
    except msgspec.DecodeError as error:
        raise RunError(f"{path}: {error}; write the run anew") from None
