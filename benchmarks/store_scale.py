"""How fast a store is, and how that grows with the trials in it.

For every number of trials a new store gets them in one study, and as many again in studies of a
thousand. What a person waits for is asked of it through the store's own methods, each several
times, by a process that has just opened it; the median counts. Then trials are appended one by one,
as a search does. Everything lies in a temporary folder and goes.

    python benchmarks/store_scale.py
    python benchmarks/store_scale.py --trials 1000 10000 --json
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from records.store.database import DATABASE_NAME
from records.store.journal import journal_sizes
from records.store.store import Store
from records.trial import Trial
from tests.support.records import failed, intent, study, trial

SIZES = (1_000, 10_000, 100_000, 1_000_000)
STUDY_TRIALS = 1_000
LARGE = "large"
TIMES = 7
APPENDED = 50
PAGE = 50
WAIT_MS = 50.0
"""What a person does not notice."""
MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Milliseconds for each question, trials per second, and sizes on disk."""

    trials: int
    questions_ms: dict[str, float]
    imported_per_s: float
    appended_per_s: float
    database_mb: float
    journal_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trials", type=int, nargs="+", default=SIZES, help="in the large study")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    results = []
    for count in asked.trials:
        with tempfile.TemporaryDirectory(prefix="cclsearch-scale-") as folder:
            results.append(measured(Path(folder), count))
        if not asked.json:
            print(f"{count} trials measured", file=sys.stderr)
    if asked.json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        show(results)
    slowest = max(ms for result in results for ms in result.questions_ms.values())
    return int(slowest > WAIT_MS)


def measured(root: Path, count: int) -> Result:
    """Fill a store and ask it."""
    with closing(Store(root)) as store:
        started = time.perf_counter()
        store.add_study(LARGE, study(), "1", trials(count))
        took_s = time.perf_counter() - started
        for number in range(max(1, count // STUDY_TRIALS)):
            store.add_study(f"small-{number:05}", study(), "1", trials(min(count, STUDY_TRIALS)))
    opening_ms = timed(lambda: Store(root).close())
    with closing(Store(root)) as store:
        questions = {name: timed(ask) for name, ask in questions_of(store, count).items()}
        appended_per_s = appending_rate(store, count)
    return Result(
        trials=count,
        questions_ms={"open": opening_ms, **questions},
        imported_per_s=count / took_s,
        appended_per_s=appended_per_s,
        database_mb=(root / DATABASE_NAME).stat().st_size / MB,
        journal_mb=sum(journal_sizes(root).values()) / MB,
    )


def trials(count: int) -> Iterator[Trial]:
    """Trials of which every tenth failed."""
    for ordinal in range(count):
        cost = 1 + (ordinal * 7919 % count) / count
        yield trial(ordinal, failed() if ordinal % 10 == 9 else cost, {"n": ordinal, "tp": 2})


def questions_of(store: Store, count: int) -> dict[str, Callable[[], object]]:
    """What a person waits for."""
    return {
        "best": lambda: store.best(LARGE),
        "last 100": lambda: store.latest(LARGE, 100),
        "counts": lambda: store.counts(LARGE),
        "failures": lambda: store.failures(LARGE),
        "one trial": lambda: store.trial(LARGE, count // 2),
        "find": lambda: store.find("larg"),
        "list page": lambda: page(store),
        "leaderboard": lambda: [
            store.metric_values(row.id, best.ordinal)
            for row in store.studies(limit=PAGE)
            if (best := store.best(row.id)) is not None
        ],
    }


def page(store: Store) -> Sequence[object]:
    """One page of studies with how much each has and the best of it."""
    rows = store.studies(limit=PAGE)
    return [store.study_count(), *((store.counts(row.id), store.best(row.id)) for row in rows)]


def appending_rate(store: Store, count: int) -> float:
    """Trials per second that are begun and finished one by one."""
    started = time.perf_counter()
    for ordinal in range(count, count + APPENDED):
        store.begin(LARGE, intent(ordinal), None)
        store.finish(LARGE, replace(trial(ordinal, 2.0), policy=intent(ordinal).policy))
    return APPENDED / (time.perf_counter() - started)


def timed(ask: Callable[[], object]) -> float:
    """Median milliseconds of a question."""
    took = []
    for _ in range(TIMES):
        started = time.perf_counter()
        ask()
        took.append(time.perf_counter() - started)
    return 1e3 * median(took)


def show(results: Sequence[Result]) -> None:
    """Print a column for each number of trials, and by how much the last is larger."""
    rows: dict[str, list[float]] = {}
    for result in results:
        for name, ms in result.questions_ms.items():
            rows.setdefault(f"{name} (ms)", []).append(ms)
        rows.setdefault("imported (trials/s)", []).append(result.imported_per_s)
        rows.setdefault("appended (trials/s)", []).append(result.appended_per_s)
        rows.setdefault("database (MB)", []).append(result.database_mb)
        rows.setdefault("journals (MB)", []).append(result.journal_mb)
    print(f"{'trials in one study':<22}" + "".join(f"{r.trials:>12}" for r in results), " growth")
    for name, values in rows.items():
        cells = "".join(f"{value:>12.2f}" for value in values)
        print(f"{name:<22}{cells}{values[-1] / values[0]:>7.1f}x")


if __name__ == "__main__":
    sys.exit(main())
