"""Rows as a file would hold them, in memory."""

from __future__ import annotations

from collections.abc import Iterable

from alipes.gateway.state.file import TABLES, Change, Rows


class Disk:
    """What all changes so far leave of each table."""

    def __init__(self) -> None:
        self.rows: Rows = {table: {} for table in TABLES}

    def write(self, changes: Iterable[Change]) -> None:
        for table, key, data in changes:
            if data is None:
                self.rows[table].pop(key, None)
            else:
                self.rows[table][key] = data
