"""Studies of Optuna, out of a copy of its storage: a SQLite file, a journal file, or a URL.

Needs the extra `optuna`. What is read is never written to, and a sampler is never asked.
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from evaluator.metrics.base import PUBLISHED_SCORE
from records.errors import EnvironmentFault, StudyError, shown
from records.files import open_regular
from records.study import Objective, Origin, Value
from records.trial import Artifact, FailureKind, Stage
from records.workload import Workload
from search.study.card_reader import is_number
from search.transfer.foreign_studies import (
    BadRows,
    Imported,
    Row,
    elsewhere,
    imported_study,
    read_rows,
    study_of,
)

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial


SQLITE: Final = b"SQLite format 3\0"
SQLITE_URL: Final = "sqlite:///"
MAX_BYTES: Final = 1 << 30
MAX_TRIALS: Final = 200_000
MAX_TOLD_BYTES: Final = 1 << 20
TOLD: Final = "optuna.json"
NO_WORK: Final = "Optuna does not record what a trial had to do, so batch and length are 1 here."
SCORED: Final = (
    "A score is the value that the objective function gave, in a unit that is not recorded."
)
PRUNED: Final = Stage.MEASURE, FailureKind.METRIC_ERROR
REFUSALS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError),
    *(TypeError, ValueError, sqlite3.Error),
)
"""What reading a storage raises that is broken, beside errors of Optuna and of SQLAlchemy."""


def is_storage(path: Path) -> bool:
    """Whether a file begins like a SQLite database, or like a journal of Optuna."""
    try:
        with open_regular(path) as file:
            head = file.readline(1 << 16)
        return head.startswith(SQLITE) or "op_code" in json.loads(head)
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def read(source: str, bad: BadRows) -> Iterator[Imported]:
    """Every study of a storage; raises `EnvironmentFault` where Optuna is not installed."""
    try:
        import optuna
        from optuna.exceptions import OptunaError
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise EnvironmentFault(
            f"{source}: reading it needs Optuna; install it with pip install 'cclsearch[optuna]'"
        ) from error
    with TemporaryDirectory(prefix="cclsearch-import-") as folder:
        try:
            with _storage(source, Path(folder)) as storage:
                for name in optuna.get_all_study_names(storage):
                    study = optuna.load_study(study_name=name, storage=storage)
                    if any(trial.state.is_finished() for trial in study.get_trials(deepcopy=False)):
                        yield _imported(study, source, Path(folder), bad)
        except (OptunaError, SQLAlchemyError, *REFUSALS) as error:
            words = " ".join(str(error).split())[:200] or type(error).__name__
            raise StudyError(f"{source}: cannot be read as a storage of Optuna: {words}") from error


@contextmanager
def _storage(source: str, folder: Path) -> Iterator["BaseStorage"]:
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    path = Path(source.removeprefix(SQLITE_URL))
    if "://" in source and not source.startswith(SQLITE_URL):
        yield RDBStorage(source, skip_table_creation=True)
        return
    if path.stat().st_size > MAX_BYTES:
        raise StudyError(f"{source}: over {MAX_BYTES} bytes")
    with open_regular(path) as file:
        is_sqlite = file.read(len(SQLITE)) == SQLITE
    copy = folder / "storage"
    if not is_sqlite:
        copyfile(path, copy)
        yield JournalStorage(JournalFileBackend(str(copy)))
        return
    _copy_database(path, copy)
    storage = RDBStorage(f"{SQLITE_URL}{copy}", skip_table_creation=True)
    try:
        yield storage
    finally:
        storage.engine.dispose()


def _copy_database(path: Path, copy: Path) -> None:
    """A consistent copy, without what a query of ours could set off."""
    with (
        closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
        sql = "select name from sqlite_master where type in ('view', 'trigger')"
        found = target.execute(sql).fetchone()
    if found is not None:
        raise StudyError(f"{path}: has the view or trigger {shown(found[0])}; Optuna makes none")


def _imported(study: "OptunaStudy", source: str, folder: Path, bad: BadRows) -> Imported:
    trials = study.get_trials(deepcopy=False)
    ended = [trial for trial in trials if trial.state.is_finished()]
    if len(ended) > MAX_TRIALS:
        raise StudyError(f"study {study.study_name!r} has over {MAX_TRIALS} trials")
    where = f"{source}: study {study.study_name!r}, trial"
    rows = read_rows(
        ((f"{where} {trial.number}", trial) for trial in ended),
        lambda trial: _row(trial, study.study_name, folder),
        bad,
    )
    running = len(trials) - len(ended)
    notes = (f"{running} trials had not ended and are left out.",) if running else ()
    origin = Origin(
        kind="optuna",
        source=Path(source).name if "://" not in source else "a storage of Optuna",
        framework="optuna",
        notes=(NO_WORK, SCORED, *notes, *bad.taken()),
    )
    first, *more = (
        Objective(
            expression=f"{PUBLISHED_SCORE}_{n}" if n > 1 else PUBLISHED_SCORE,
            direction="maximize" if one.name == "MAXIMIZE" else "minimize",
        )
        for n, one in enumerate(study.directions, start=1)
    )
    found = study_of(
        name=study.study_name,
        objective=first,
        workload=Workload(name=study.study_name, global_batch=1, sequence_length=1),
        environment=elsewhere("cpu", 1),
        origin=origin,
    )
    found = replace(found, more_objectives=tuple(more), strategy="optuna")
    imported = imported_study(found, rows)
    return replace(imported, files=[folder / each.digest for row in rows for each in row.artifacts])


def _row(trial: "FrozenTrial", study: str, folder: Path) -> Row:
    state = trial.state.name
    values = list(trial.values or ()) if state == "COMPLETE" else []
    attributes = {n: v for n, v in trial.user_attrs.items() if is_number(v)}
    more = {f"score_{n}": value for n, value in enumerate(values[1:], start=2)}
    params = {knob: _setting(knob, value) for knob, value in trial.params.items()}
    began, ended = trial.datetime_start, trial.datetime_complete
    return Row(
        text=json.dumps([trial.number, state, values, params, str(began)]),
        config=params,
        succeeded=state == "COMPLETE",
        least_score=-math.inf,
        score=values[0] if all(map(math.isfinite, values)) and values else None,
        metrics={**attributes, **more},
        error=_reason(trial),
        failure=PRUNED if state == "PRUNED" else None,
        from_cache=False,
        author="optuna",
        rationale=f"trial {trial.number} of the study {study!r}",
        started_at=_instant(began),
        ended_at=_instant(ended),
        artifacts=_artifacts(trial, folder),
    )


def _reason(trial: "FrozenTrial") -> str:
    steps = trial.intermediate_values
    last = f"; its last value, at step {max(steps)}, was {steps[max(steps)]:.6g}" if steps else ""
    if trial.state.name == "PRUNED":
        return f"stopped early by the pruner{last}"
    told = trial.system_attrs.get("fail_reason")
    return str(told) if told else f"the objective function failed, and no reason is recorded{last}"


def _setting(knob: str, value: object) -> Value:
    if value is None:
        return "None"
    if not isinstance(value, bool | int | float | str):
        raise StudyError(f"{knob} is {shown(value)}, no plain value")
    return value


def _artifacts(trial: "FrozenTrial", folder: Path) -> tuple[Artifact, ...]:
    """What a trial told besides its values, as a file to keep with it, if it told anything."""
    if not trial.intermediate_values and not trial.user_attrs:
        return ()
    steps: Mapping[str, float | None] = {
        str(step): value if math.isfinite(value) else None
        for step, value in trial.intermediate_values.items()
    }
    told = {"intermediate_values": steps, "user_attrs": trial.user_attrs}
    content = json.dumps(told, sort_keys=True).encode()
    if len(content) > MAX_TOLD_BYTES:
        raise StudyError(f"its attributes take over {MAX_TOLD_BYTES} bytes")
    digest = hashlib.sha256(content).hexdigest()
    (folder / digest).write_bytes(content)
    return (Artifact(name=TOLD, digest=digest, size_bytes=len(content)),)


def _instant(when: datetime | None) -> str:
    return "" if when is None else when.isoformat(timespec="milliseconds")
