from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import uvloop

from alipes.gateway.fleet.processes import LocalProcess, adopt, birth, start
from alipes.gateway.fleet.records import ProcessRecord

SLEEP = ("sleep", "60")


async def over(process: LocalProcess) -> None:
    await asyncio.wait_for(process.over.wait(), 10)
    os.close(process.output)


def test_a_birth_is_of_one_process_for_as_long_as_it_lives() -> None:
    assert birth(os.getpid()) == birth(os.getpid()) != birth(1) != ""
    child = subprocess.Popen(SLEEP)
    assert birth(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert birth(child.pid) == ""  # a zombie
    child.wait()
    assert birth(child.pid) == ""


def test_a_name_cannot_deceive(tmp_path: os.PathLike[str]) -> None:
    """The second field of the file is a command's name, of any characters."""
    sly = os.path.join(tmp_path, "a) Z 1 (b")
    os.symlink("/bin/sleep", sly)
    child = subprocess.Popen([sly, "60"])
    try:
        assert int(birth(child.pid).split()[1]) >= int(birth(os.getpid()).split()[1])
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_how_a_child_ended_is_known(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def whole() -> None:
        for argv, code, end in (
            (("sh", "-c", "exit 2"), 2, "exit code 2"),
            (("sh", "-c", "kill -9 $$"), -9, "ended by SIGKILL"),
        ):
            process = start(argv, {}, "f")
            await over(process)
            assert (process.code, process.end) == (code, end)

    run(whole())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_adopted_process_is_watched_without_being_a_child(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def whole() -> None:
        child = start(SLEEP, {}, "f")
        record = child.record
        assert (record.fingerprint, record.greeted) == ("f", False)
        adopted = adopt(record)
        assert adopted is not None
        assert (adopted.pid, adopted.adopted, child.adopted) == (child.pid, True, False)
        os.kill(child.pid, signal.SIGKILL)
        await over(adopted)
        await over(child)
        assert (adopted.code, adopted.end) == (None, "ended, its exit code unknown")
        assert adopt(record) is None
        adopted.terminate()  # nobody is there
        adopted.kill_group()

    run(whole())


def test_another_process_with_the_same_pid_is_left_alone() -> None:
    async def whole() -> None:
        child = start(SLEEP, {}, "f")
        boot, ticks = child.record.birth.split()
        for other in (f"{boot} {int(ticks) - 1}", f"other-boot {ticks}", ""):
            assert adopt(msgspec.structs.replace(child.record, birth=other)) is None
        assert birth(child.pid)
        child.terminate()
        await over(child)
        for pid in (0, -1, 1 << 30):
            assert adopt(ProcessRecord(pid, "", "f")) is None

    asyncio.run(whole())
