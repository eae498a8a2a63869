"""State that is kept in a real file, and everything that may be wrong with that."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from alipes.gateway.state import file as file_module
from alipes.gateway.state import writer as writer_module
from alipes.gateway.state.file import NAME, ROWS_TOGETHER, TABLES, Change, Rows, StateFile

from .conftest import LARGE, flushed, kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log has been warned of since the last time."""
    caplog.set_level(logging.INFO, "alipes.gateway")

    def warnings() -> list[str]:
        found = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        caplog.clear()
        return found

    return warnings


Lines = Callable[[], list[str]]


def write(folder: Path, names: str = "ab", size: int = 100) -> None:
    """A gateway's life that leaves sessions and responses of these names."""

    async def life() -> None:
        async with kept(folder) as (tables, _):
            for name in names:
                tables.turn(name)
                tables.respond(name, size)

    asyncio.run(life())


def known(folder: Path, names: str = "ab") -> list[tuple[bool, bool]]:
    """Which of the sessions and responses another gateway knows."""

    async def life() -> list[tuple[bool, bool]]:
        async with kept(folder) as (tables, _):
            now = time.monotonic_ns()
            responses = [tables.responses.find("t", name, now) for name in names]
            sessions = [tables.knows(name) for name in names]
            return list(zip(sessions, [one is not None for one in responses], strict=True))

    return asyncio.run(life())


ALL = [(True, True)] * 2
NONE = [(False, False)] * 2


def test_everything_is_there_again_and_private(folder: Path, lines: Lines) -> None:
    write(folder)
    assert known(folder) == known(folder) == ALL
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {NAME: 0o600, "gateway.lock": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert lines() == []


def test_nothing_need_be_closed(folder: Path, tmp_path: Path) -> None:
    """What was written is there although the gateway was killed: its files as they were."""
    copy = tmp_path / "copy"

    async def life() -> None:
        async with kept(folder) as (tables, keeper):
            tables.turn("a")
            tables.respond("a")
            await flushed(keeper)
            tables.turn("b")
            shutil.copytree(folder, copy)

    asyncio.run(life())
    assert Path(copy, f"{NAME}-wal").stat().st_mode & 0o777 == 0o600
    assert known(copy) == [(True, True), (False, False)]


@pytest.mark.parametrize("count", [ROWS_TOGETHER, ROWS_TOGETHER + 1, 3 * ROWS_TOGETHER + 5])
def test_any_number_of_rows_is_written_at_once(folder: Path, count: int) -> None:
    rows = {number.to_bytes(2, "big"): b"%d" % number for number in range(count)}
    written(folder, [("turn", key, data) for key, data in rows.items()] + [("body", b"", b"x")])
    assert written(folder, [("turn", key, None) for key in rows][1:])["turn"] == rows
    first = bytes(2)
    left = {table: {} for table in TABLES} | {"turn": {first: rows[first]}, "body": {b"": b"x"}}
    assert written(folder, []) == left


def written(folder: Path, changes: list[Change]) -> Rows:
    """What the file held before the changes."""
    file = StateFile(folder, LARGE)
    file.claim()
    before = file.read()
    file.write(changes)
    file.close()
    return before


def test_what_is_deleted_is_not_in_the_file_any_more(folder: Path) -> None:
    async def life() -> None:
        async with kept(folder) as (tables, keeper):
            tables.respond("a", 50_000)
            await flushed(keeper)
            tables.responses.remove("t", "a", time.monotonic_ns())
            await flushed(keeper)
            for suffix in ("", "-wal"):
                assert b"2" * 100 not in (folder / f"{NAME}{suffix}").read_bytes()

    asyncio.run(life())
    assert b"2" * 100 not in (folder / NAME).read_bytes()
    assert known(folder) == NONE


def test_the_file_is_not_touched_where_nothing_changes(folder: Path) -> None:
    async def life() -> None:
        async with kept(folder) as (tables, keeper):
            tables.turn("a")
            await flushed(keeper)
            before = Path(folder, f"{NAME}-wal").stat()
            await flushed(keeper)
            after = Path(folder, f"{NAME}-wal").stat()
            assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)

    asyncio.run(life())


# --- at the start ---


def test_a_folder_that_another_gateway_has(folder: Path, lines: Lines) -> None:
    async def life() -> None:
        async with kept(folder) as (tables, _):
            tables.turn("a")
            async with kept(folder) as (others, keeper):
                others.turn("b")
                assert keeper._writer is None
                assert len(others.sessions.notes) == 0

    asyncio.run(life())
    (line,) = lines()
    assert "another gateway keeps its state there; set state.folder" in line
    assert known(folder) == [(True, False), (False, False)]


def unusable(kind: str, folder: Path) -> Path:
    folder.parent.mkdir(parents=True)
    if kind == "a file":
        folder.touch()
    elif kind == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "with a folder in the file's place":
        folder.mkdir(mode=0o700)
        (folder / NAME).mkdir()
    elif kind == "nobody may write":
        return Path("/proc/alipes/state")
    return folder


@pytest.mark.parametrize(
    "kind",
    ["a file", "open to others", "with a folder in the file's place", "nobody may write"],
)
def test_a_folder_that_cannot_be_used(kind: str, folder: Path, lines: Lines) -> None:
    place = unusable(kind, folder)
    assert known(place) == NONE
    write(place)
    assert known(place) == NONE
    found = lines()
    assert len(found) == 3
    assert all("state is neither restored nor saved" in line for line in found)


def test_a_file_that_is_locked(folder: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder)
    monkeypatch.setattr(file_module, "OPEN_SECONDS", 0.02)
    other = sqlite3.connect(folder / NAME, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    assert known(folder) == NONE
    (line,) = lines()
    assert "state is neither restored nor saved: database is locked" in line
    other.close()
    assert known(folder) == ALL


def damage(kind: str, path: Path) -> None:
    data = bytearray(path.read_bytes())
    if kind == "header":
        data[:16] = b"no database here"
    elif kind == "page":
        at = data.index(b"2" * 200)
        data[at : at + 100] = b"9" * 100
    elif kind == "cut":
        del data[len(data) // 2 :]
    elif kind == "text":
        data = bytearray(b"hello\n")
    path.write_bytes(data)
    if kind in STATEMENTS:
        with sqlite3.connect(path) as db:
            db.executescript(STATEMENTS[kind])
        db.close()


STATEMENTS = {
    "version": "PRAGMA user_version=99",
    "table": "DROP TABLE turn",
    "row": "UPDATE session SET data = x'00'",
    "lacking rows": "DELETE FROM branch",
    "lacking turns": "DELETE FROM turn",
    "lacking seed": "UPDATE meta SET key = x'00', sum = 0",
    "other tables": "".join(f"DROP TABLE {table};" for table in TABLES) + "CREATE TABLE x(y)",
}


@pytest.mark.parametrize("kind", ["header", "page", "cut", "text", *STATEMENTS])
def test_a_broken_file_is_set_aside_and_another_begun(
    kind: str, folder: Path, lines: Lines
) -> None:
    write(folder, size=20_000)
    for _ in range(2):  # of the broken ones the last is left
        damage(kind, folder / NAME)
        broken = (folder / NAME).read_bytes()
        assert known(folder) == NONE
        (line,) = lines()
        assert "broken, set aside" in line
        aside = (folder / f"{NAME}.broken").read_bytes()
        assert len(aside) == len(broken)
        assert sorted(path.name for path in folder.iterdir()) == [
            NAME,
            f"{NAME}.broken",
            "gateway.lock",
        ]
        write(folder, size=20_000)
        assert known(folder) == ALL
        assert lines() == []


def test_any_page_may_be_damaged(folder: Path, lines: Lines) -> None:
    """Either all is there, where the page was not in use, or nothing; never an error."""
    write(folder, size=10_000)
    path, sound = folder / NAME, (folder / NAME).read_bytes()
    outcomes = []
    for page in range(len(sound) // 4096):
        for junk in (b"\xa5", b"\0"):
            path.write_bytes(sound[: page * 4096] + junk * 4096 + sound[(page + 1) * 4096 :])
            outcomes.append(known(folder))
            assert outcomes[-1] in (ALL, NONE)
            assert len(lines()) == (outcomes[-1] == NONE)
    assert outcomes.count(NONE) > len(outcomes) // 2


# --- while it runs ---


def failing(folder: Path, fault: Callable[[], None], lines: Lines) -> str:
    """The line of a gateway that meets the fault after it has saved something."""

    async def life() -> None:
        async with kept(folder) as (tables, keeper):
            tables.turn("a")
            await flushed(keeper)
            fault()
            tables.turn("b")
            await flushed(keeper)
            assert keeper._writer is not None
            assert keeper._writer.ended
            # It serves on, and nothing piles up.
            keeper.save()
            tables.turn("c")
            tables.respond("c")
            assert tables.knows("c")
            assert len(tables.sessions.notes) == len(tables.responses.notes) == 0

    asyncio.run(life())
    (line,) = lines()
    assert "state is no longer saved" in line
    return line


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_a_file_that_is_lost(lost: str, folder: Path, lines: Lines) -> None:
    def lose() -> None:
        shutil.rmtree(folder) if lost == "folder" else (folder / NAME).unlink()

    assert "it is gone" in failing(folder, lose, lines)
    assert known(folder) == NONE


def test_a_file_in_the_place_of_the_lost_one_is_left_alone(folder: Path, lines: Lines) -> None:
    def replace() -> None:
        (folder / NAME).unlink()
        (folder / NAME).write_text("mine")

    failing(folder, replace, lines)
    assert (folder / NAME).read_text() == "mine"


def test_a_file_that_breaks(folder: Path, lines: Lines) -> None:
    """SQLite finds it once the page is read anew; what is on the disk is set aside."""

    def overwrite() -> None:
        with sqlite3.connect(folder / NAME) as db:
            db.execute("DROP TABLE branch")
        db.close()

    assert "no such table: branch" in failing(folder, overwrite, lines)
    assert (folder / f"{NAME}.broken").exists()
    assert not (folder / NAME).exists()
    assert known(folder) == NONE


def test_a_lock_that_stays(folder: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "WRITE_SECONDS", 0.05)
    others = []

    def lock() -> None:
        others.append(sqlite3.connect(folder / NAME, isolation_level=None))
        others[0].execute("BEGIN IMMEDIATE")

    assert "database is locked" in failing(folder, lock, lines)
    others[0].close()
    # An old state is worse than none.
    assert known(folder) == NONE


def test_a_lock_that_goes_delays_nobody_and_loses_nothing(folder: Path, lines: Lines) -> None:
    async def life() -> None:
        async with kept(folder) as (tables, keeper):
            tables.turn("a")
            await flushed(keeper)
            other = sqlite3.connect(folder / NAME, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            tables.turn("b")
            keeper.save()
            for _ in range(50):
                tables.respond("a")
                tables.respond("b")
                keeper.save()
            assert keeper._writer is not None
            assert not keeper._writer.idle
            assert len(tables.responses.notes) > 0
            other.execute("COMMIT")
            other.close()

    asyncio.run(life())
    assert known(folder) == ALL
    assert lines() == []


def test_a_file_that_is_full_keeps_sessions_and_the_content_it_has(
    folder: Path, lines: Lines
) -> None:
    most = 1 << 20
    names = [f"r{number}" for number in range(60)]

    async def life() -> None:
        async with kept(folder, most) as (tables, keeper):
            for name, before in zip(names, ["", *names], strict=False):
                tables.turn(name)
                tables.respond(name, 20_000, before)
                await flushed(keeper)
            for number in range(100):
                tables.turn(f"s{number}")
            await flushed(keeper)

    asyncio.run(life())
    (line,) = lines()
    assert f"raise state.max_bytes, now {most}" in line
    assert (folder / NAME).stat().st_size <= most

    async def again() -> list[int]:
        async with kept(folder, most) as (tables, _):
            assert all(tables.knows(f"s{number}") for number in range(100))
            assert all(tables.knows(name) for name in names)
            found = [tables.find(name) for name in names]
            assert all(one.claim.session == name for name, one in zip(names, found, strict=True))
            return [len(one.turn.conversation()) if one.turn else 0 for one in found]

    lengths = asyncio.run(again())
    whole = lengths.index(0)
    assert 10 < whole < 30
    assert lengths == [*range(2, 2 * whole + 2, 2), *[0] * (60 - whole)]


def test_there_is_room_again_once_something_is_forgotten(folder: Path) -> None:
    async def life() -> None:
        async with kept(folder, 1 << 20) as (tables, keeper):
            for name in ("a", "b", "c", "d"):
                tables.respond(name, 150_000)
                await flushed(keeper)
            for name in ("a", "b", "c"):
                tables.responses.remove("t", name, time.monotonic_ns())
            tables.respond("e", 150_000)
            await flushed(keeper)

    asyncio.run(life())

    async def again() -> dict[str, bool]:
        async with kept(folder, 1 << 20) as (tables, _):
            return {name: tables.find(name).turn is not None for name in ("d", "e")}

    assert asyncio.run(again()) == {"d": False, "e": True}


def test_a_file_that_cannot_hold_the_sessions(folder: Path, lines: Lines) -> None:
    async def life() -> None:
        async with kept(folder, 1 << 16) as (tables, _):
            for number in range(200):
                tables.turn(f"s{number}")

    asyncio.run(life())
    (line,) = lines()
    assert (
        "state is no longer saved, a restart will begin without: database or disk is full" in line
    )
    assert not (folder / NAME).exists()


def test_a_bound_that_was_lowered(folder: Path) -> None:
    write(folder, "abcdefgh", 50_000)
    assert (folder / NAME).stat().st_size > 400_000

    async def life() -> None:
        async with kept(folder, 1 << 18) as (tables, keeper):
            assert tables.find("a").turn is not None
            for name in "abcdefg":
                tables.responses.remove("t", name, time.monotonic_ns())
            await flushed(keeper)
        async with kept(folder, 1 << 18) as (tables, _):
            assert tables.find("h").turn is not None

    asyncio.run(life())
    assert (folder / NAME).stat().st_size <= 1 << 18


LIMITED = """
import asyncio, logging, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from conftest import flushed, kept
logging.basicConfig(stream=sys.stdout, format="%(message)s")

async def life():
    async with kept(Path(sys.argv[1])) as (tables, keeper):
        tables.turn("a")
        await flushed(keeper)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        tables.respond("b", 500_000)
        await flushed(keeper)
        tables.turn("c")
        print("serves:", tables.knows("c"), "saves:", not keeper._writer.ended)

asyncio.run(life())
"""


def test_files_that_may_not_grow(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", LIMITED, str(folder), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    told, shown = ended.stdout.splitlines()
    assert "state is no longer saved" in told
    assert shown == "serves: True saves: False"
    assert not (folder / NAME).exists()


def test_a_log_that_a_reader_makes_grow(
    folder: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "LOG_BYTES", 1 << 18)

    async def life() -> None:
        async with kept(folder, 1 << 18) as (tables, keeper):
            tables.turn("a")
            await flushed(keeper)
            reader = sqlite3.connect(folder / NAME, isolation_level=None)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM session").fetchone()
            for number in range(40):
                tables.respond("a", 20_000)
                tables.turn(f"s{number % 3}")
                await flushed(keeper)
            reader.close()

    asyncio.run(life())
    (line,) = lines()
    assert "its log has outgrown state.max_bytes" in line


def test_a_disk_that_is_too_slow_does_not_keep_the_gateway_from_stopping(
    folder: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "CLOSE_SECONDS", 0.05)

    async def life() -> sqlite3.Connection:
        async with kept(folder) as (tables, keeper):
            tables.turn("a")
            await flushed(keeper)
            other = sqlite3.connect(folder / NAME, isolation_level=None, check_same_thread=False)
            other.execute("BEGIN IMMEDIATE")
            tables.turn("b")
            writer = keeper._writer
        assert writer is not None
        assert writer._thread.is_alive()
        other.close()
        writer._thread.join(20)
        return other

    asyncio.run(life())
    (line,) = lines()
    assert "the last changes are not saved" in line


def test_an_old_lock_file_is_no_obstacle(folder: Path) -> None:
    write(folder)
    one = StateFile(folder, LARGE)
    one.claim()
    one.close()
    assert known(folder) == ALL
