"""Opens records that must already be there: reading creates nothing."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from records.database import NAME
from records.errors import StoreError
from records.journal import sizes
from records.rows import StudyRow
from records.store import Store
from search.settings import store_root


def has_records(option: Path | None) -> bool:
    """Whether a store is where the option or the environment says."""
    root = store_root(option)
    return (root / NAME).is_file() or bool(sizes(root))


@contextmanager
def recorded(option: Path | None) -> Iterator[Store]:
    """The store that the option or the environment names; raises `StoreError` without one."""
    root = store_root(option).absolute()
    if not has_records(option):
        raise StoreError(
            f"no records in {root}; start with `cclsearch run --objective step_time`, "
            "or name their folder with --store"
        )
    with closing(Store(root)) as store:
        yield store


def status(row: StudyRow, store: Store) -> str:
    """How far a study is; one whose process was killed is interrupted, whatever it wrote last."""
    if row.status != "running":
        return row.status
    return "interrupted" if store.holder(row.id) is None else "running"
