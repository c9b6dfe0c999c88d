"""A store whose trials left traces and logs."""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from records.store.store import Store
from tests.support import records as testing

STUDY = "20260101-000000-aaaa"
DAYS = ("2026-01-01", "2026-02-01", "2026-03-01", "2026-04-01")
SECONDS = (0.4, 0.1, 0.2, 0.3)


@dataclass(frozen=True)
class KeptStore:
    """Four trials that ended on the days; trial 1 is the best, then 2, 3 and 0."""

    root: Path

    def open(self) -> Store:
        return Store(self.root)

    def trace_of(self, ordinal: int) -> Path:
        """Where the trace of a trial lies, or lay."""
        return self.path_of(ordinal, "rank0_trace.json")

    def path_of(self, ordinal: int, name: str) -> Path:
        with closing(self.open()) as store:
            files = store.history(STUDY).find(ordinal).outcome.artifacts
            (found,) = (file for file in files if file.name == name)
            plain = store.artifacts.path("0" * 64).parents[1] / found.digest[:2] / found.digest
            return plain.with_name(f"{found.digest}.zst")

    def traces(self) -> list[int]:
        """The trials whose traces are there."""
        return [ordinal for ordinal in range(len(DAYS)) if self.trace_of(ordinal).exists()]


def add_study(store: Store, study_id: str, text: str = "") -> None:
    trials = []
    for ordinal, (day, time_s) in enumerate(zip(DAYS, SECONDS, strict=True)):
        files = tuple(
            store.artifacts.keep_text(f"{text}{name} of trial {ordinal}\n" * 1000, name)
            for name in ("rank0_trace.json", "rank0.log")
        )
        outcome = replace(testing.measured(time_s), artifacts=files)
        trial = testing.trial(ordinal, outcome, {"tp": ordinal})
        trials.append(replace(trial, ended_at=f"{day}T00:00:00.000+00:00"))
    store.add_study(study_id, testing.study(), "1", trials)


class Made:
    """Makes each kind of store once, to be copied: what is forced to the disk takes its time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[tuple[bool, tuple[str, ...]], Path] = {}

    def copied(self, *others: str, same: bool, to: Path) -> KeptStore:
        kind = (same, others)
        if kind not in self._made:
            self._made[kind] = self._root / str(len(self._made))
            with closing(Store(self._made[kind])) as store:
                add_study(store, STUDY)
                for other in others:
                    add_study(store, other, "" if same else other)
        shutil.copytree(self._made[kind], to)
        return KeptStore(to)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def kept_store(tmp_path, made) -> Callable[..., KeptStore]:
    """Gives a store with studies of these ids; those after the first have files of their own."""

    def copied(*others: str, same: bool = False) -> KeptStore:
        return made.copied(*others, same=same, to=tmp_path / "store")

    return copied
