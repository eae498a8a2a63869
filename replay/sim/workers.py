"""Cases of a scenario side by side, each in a process of its own: they share nothing."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from time import perf_counter

import msgspec

from alipes.replay.runs import Run
from alipes.replay.sim.clock import SimulationError
from alipes.replay.sim.hardware import Hardware
from alipes.replay.sim.scenario import Case, Scenario
from alipes.replay.sim.simulate import Workload, simulate


@dataclass(frozen=True, slots=True)
class Job:
    """One case on some hardware, and what to call it while it runs."""

    label: str
    scenario: Scenario
    hardware: Hardware
    workload: Workload
    case: Case


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a job, and the seconds that it took by the clock on the wall."""

    run: Run
    seconds: float


def run_all(jobs: Sequence[Job], processes: int, waiting: Callable[[str], None]) -> Iterator[Done]:
    """Every job, in order, at most ``processes`` at a time; with one, in this process.
    ``waiting`` gets the label of the one that is next. Raises what ``simulate`` raises, and
    ``SimulationError`` where a process dies."""
    count = min(processes, len(jobs))
    if count <= 1:
        for job in jobs:
            waiting(job.label)
            yield _do(job)
        return
    # A forked child would have the locks of this process's other threads as they happened to be.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(count, context, _leave_interrupts)
    try:
        futures = [executor.submit(_do_apart, job) for job in jobs]
        for job, future in zip(jobs, futures, strict=True):
            waiting(job.label)
            try:
                encoded, seconds = future.result()
                yield Done(msgspec.msgpack.decode(encoded, type=Run), seconds)
            except BrokenProcessPool as error:
                problem = "a process of the simulation died, perhaps for want of memory; --jobs 1"
                raise SimulationError(f"{job.label}: {problem} needs least of it") from error
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _do(job: Job) -> Done:
    begin = perf_counter()
    run = simulate(job.scenario, job.hardware, job.workload, job.case)
    return Done(run, perf_counter() - begin)


def _do_apart(job: Job) -> tuple[bytes, float]:
    """Encoded, as a pickled run would come back with equal values that are not its defaults
    themselves, and be written to files with other bytes."""
    done = _do(job)
    return msgspec.msgpack.encode(done.run), done.seconds


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the parent ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
