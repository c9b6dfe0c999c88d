"""A SQLite connection with transactions and rows by name; it knows no table."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Database:
    """A database whose rows come by name; outside of `atomic` each statement is a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.isolation_level = None  # else Python opens transactions implicitly
        self.connection = connection

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement; its rows are tuples."""
        return self.connection.execute(sql, values)

    def query(self, sql: str, values: Sequence[object] = ()) -> Iterator[dict[str, Any]]:
        """Run one statement; its rows are read lazily."""
        rows = self.execute(sql, values)
        names = [column[0] for column in rows.description]
        return (dict(zip(names, row, strict=True)) for row in rows)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Commit everything written within, or nothing; nested blocks are savepoints."""
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
