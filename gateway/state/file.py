"""The file that state is kept in: tables of keys and data in SQLite, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from alipes.gateway.fleet.endpoints import lock, owned_folder

NAME: Final = "gateway.db"
LOCK_NAME: Final = "gateway.lock"
VERSION: Final = 1
_TEXTS: Final = ("turn", "response", "body")
"""The tables with what clients wrote."""
TABLES: Final = ("meta", "session", "branch", *_TEXTS)
OPEN_SECONDS: Final = 1.0
"""How long another process may keep the file locked while it is opened."""
WRITE_SECONDS: Final = 30.0
"""The same, while it is written."""
_SUFFIXES: Final = ("", "-wal", "-shm")
LOG_BYTES: Final = 16 << 20
ROWS_TOGETHER: Final = 256
"""At most in one statement, which may have 999 values in the oldest SQLite."""
_BROKEN: Final = frozenset(
    (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
)
_PRAGMAS: Final = (
    "auto_vacuum=INCREMENTAL",
    "journal_mode=WAL",
    "synchronous=NORMAL",
    f"journal_size_limit={LOG_BYTES}",
    "secure_delete=ON",
)

Change = tuple[str, bytes, bytes | None]
"""Table, key, and the data that it has now; None where it has none."""
Rows = dict[str, dict[bytes, bytes]]
"""Data by table and key."""


class StateError(Exception):
    """The folder or the file cannot be used; the message says why."""


class BrokenError(StateError):
    """What is in the file cannot be read, or not be relied on."""


class StateFile:
    """``claim`` the folder, ``read`` the file, then ``write``, and ``close`` at the end, one thread
    at a time. The database takes ``max_bytes`` at most, the last quarter of it only for changes
    that may use the ``reserve``; beside it is SQLite's log of what was written last. Methods raise
    ``OSError`` and ``sqlite3.Error`` besides what they say."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.path = folder / NAME
        self.max_bytes = max_bytes
        self._lock = -1
        self._db: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._pages = 0

    def claim(self) -> None:
        """Take the folder, made if there is none, for this process. Raises ``StateError`` where
        another gateway has it, or others may write to it."""
        folder = self.path.parent
        if not owned_folder(folder):
            raise StateError("its folder must belong to this user, with no other one writing to it")
        self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not lock(self._lock):
            raise StateError("another gateway keeps its state there")

    def read(self) -> Rows:
        """Open the file, made if there is none. Raises ``BrokenError``, also for what another
        version wrote."""
        try:
            self._connect()
            return {table: self._table(table) for table in TABLES}
        except sqlite3.Error as error:
            if is_broken(error):
                raise BrokenError(str(error)) from None
            raise

    def write(self, changes: Iterable[Change], reserve: bool = False) -> None:
        """All of the changes, or none where an exception is raised: ``StateError`` where the file
        is gone."""
        db = self._checked()
        puts: dict[str, list[bytes | int]] = {table: [] for table in TABLES}
        gone: dict[str, list[bytes]] = {table: [] for table in TABLES}
        for table, key, data in changes:
            if data is None:
                gone[table].append(key)
            else:
                puts[table] += (key, data, _sum(key, data))
        most = self._pages if reserve else self._pages * 3 // 4
        db.execute(f"PRAGMA max_page_count={most}")
        db.execute("BEGIN IMMEDIATE")
        try:
            for table, keys in gone.items():  # first, for what they leave is room
                _execute(db, f"DELETE FROM {table} WHERE key IN (%s)", "?", keys)
            for table, values in puts.items():
                _execute(db, f"INSERT OR REPLACE INTO {table} VALUES %s", "(?, ?, ?)", values)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if any(gone[table] for table in _TEXTS):
            # What is deleted is overwritten in the file at once, but its text stays in the log.
            with contextlib.suppress(sqlite3.OperationalError):
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def set_aside(self) -> None:
        """Make room for a new file; this one goes in the place of the last that was broken."""
        self._disconnect()
        for suffix in _SUFFIXES:
            target = Path(f"{self.path}.broken{suffix}")
            target.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(target)

    def remove(self) -> None:
        """Leave nothing that a later gateway could take for the state of this one."""
        gone = self._db is None or not self._is_there()
        self._disconnect()
        for suffix in () if gone else _SUFFIXES:
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def close(self) -> None:
        self._disconnect()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _connect(self) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o600)
            found = os.fstat(handle)
            self._identity = (found.st_dev, found.st_ino)
        finally:
            os.close(handle)
        self._db = db = sqlite3.connect(
            self.path, timeout=OPEN_SECONDS, isolation_level=None, check_same_thread=False
        )
        for pragma in _PRAGMAS:
            db.execute(f"PRAGMA {pragma}")
        if not _number(db, "SELECT count(*) FROM sqlite_master"):
            self._create(db)
        version = _number(db, "PRAGMA user_version")
        if version != VERSION:
            raise BrokenError(f"it is of version {version}, not {VERSION}")
        self._bound(db)
        db.execute(f"PRAGMA busy_timeout={int(WRITE_SECONDS * 1e3)}")

    @staticmethod
    def _create(db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        for table in TABLES:
            columns = "key BLOB PRIMARY KEY, data BLOB NOT NULL, sum INTEGER NOT NULL"
            db.execute(f"CREATE TABLE {table} ({columns}) WITHOUT ROWID")
        db.execute(f"PRAGMA user_version={VERSION}")
        db.execute("COMMIT")

    def _bound(self, db: sqlite3.Connection) -> None:
        """A file that was allowed more gives back what it does not use."""
        self._pages = self.max_bytes // _number(db, "PRAGMA page_size")
        more = _number(db, "PRAGMA page_count") - self._pages
        if more > 0:
            db.executescript(f"PRAGMA incremental_vacuum({more})")  # one step for every page

    def _table(self, table: str) -> dict[bytes, bytes]:
        assert self._db is not None
        found = {}
        for key, data, told in self._db.execute(f"SELECT key, data, sum FROM {table}"):
            if not isinstance(key, bytes) or not isinstance(data, bytes) or _sum(key, data) != told:
                raise BrokenError(f"a row of table {table} has changed by itself")
            found[key] = data
        return found

    def _checked(self) -> sqlite3.Connection:
        """SQLite itself would go on writing to a file that nobody finds any more, and lets its log
        grow for as long as another process reads."""
        if self._db is None or not self._is_there():
            raise StateError("it is gone")
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"{self.path}-wal").st_size > self.max_bytes + LOG_BYTES:
                raise StateError("its log has outgrown state.max_bytes: another process reads it")
        return self._db

    def _is_there(self) -> bool:
        try:
            found = self.path.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


def is_broken(error: sqlite3.Error) -> bool:
    """Whether it is the fault of what the file holds."""
    return _code(error) in _BROKEN


def is_full(error: sqlite3.Error) -> bool:
    """Whether the file, or its disk, has no room."""
    return _code(error) == sqlite3.SQLITE_FULL


def _code(error: sqlite3.Error) -> int:
    """0 for an error that SQLite did not raise."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _execute(db: sqlite3.Connection, query: str, row: str, values: Sequence[object]) -> None:
    """The query for many rows at once, ``row`` for each: every statement takes the interpreter's
    lock from the event loop when it ends."""
    width = row.count("?")
    for first in range(0, len(values), width * ROWS_TOGETHER):
        some = values[first : first + width * ROWS_TOGETHER]
        db.execute(query % ", ".join([row] * (len(some) // width)), some)


def _sum(key: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(key))


def _number(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])
