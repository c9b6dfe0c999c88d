"""A connection to SQLite, with what a store asks of one; it knows no table.

Every command reads the store, and sqlite_utils, which makes its tables, takes longer to load than a
study takes to show.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Database:
    """A database whose rows come by name; outside of `atomic` each statement is a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.isolation_level = None  # else Python begins transactions that nobody ends
        self.connection = connection

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement; its rows are tuples."""
        return self.connection.execute(sql, values)

    def query(self, sql: str, values: Sequence[object] = ()) -> Iterator[dict[str, Any]]:
        """Run one statement now; its rows are read as they are asked for."""
        rows = self.execute(sql, values)
        names = [column[0] for column in rows.description]
        return (dict(zip(names, row, strict=True)) for row in rows)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Keep all that is written within, or nothing; one within another is a part of it."""
        begin, keep, drop = (
            ("savepoint inner_part", "release inner_part", "rollback to inner_part")
            if self.connection.in_transaction
            else ("begin", "commit", "rollback")
        )
        self.execute(begin)
        try:
            yield
            self.execute(keep)
        except BaseException:
            if self.connection.in_transaction:
                self.execute(drop)
            raise

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
