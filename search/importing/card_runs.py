"""Runs that CCL-Search appended to a workload card, under `runs`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from records.errors import StudyError, shown
from records.origin import Origin
from records.study import Environment, Value
from search.card_file import Card, is_number
from search.card_reader import CardReader
from search.importing.files import BadRows, content_digest
from search.importing.history import imported
from search.importing.imported import Imported
from search.importing.row import Row
from search.importing.run_folder import DECLARED, STEP_TIME, aim_of
from search.importing.run_folder import Card as Beside
from search.importing.studies import (
    author_of,
    direction_of,
    positive,
    published_of,
    rank_count,
    rules_of,
    study_of,
)

RUNS: Final = "runs"
SUFFIXES: Final = (".yaml", ".yml")
SEVERAL: Final = "Runs of several launches of the tool may stand together in a card."
BASE_ENVIRONMENT: Final = Environment(
    name="elsewhere", device="cuda", accelerator="not on record", world_size=1, ranks_per_node=1
)


def is_card(path: Path) -> bool:
    """Whether a file may be a workload card, by its name."""
    return path.suffix in SUFFIXES and path.is_file()


def beside(path: Path) -> Beside:
    """What a card says of the runs that stand beside it."""
    card = Card(path)
    reader = CardReader(card)
    if len(reader.batch_sizes()) > 1:
        raise StudyError(f"{path}: lists several batch sizes; leave in it the one that was run")
    return Beside(
        name=path.name,
        digest=content_digest(path),
        workload=reader.workload(),
        environment=reader.stated_environment() or BASE_ENVIRONMENT,
        inferences=tuple(reader.inferences),
        framework=card.text("Model-executor.framework.name"),
    )


def read(path: Path, bad: BadRows) -> Iterator[Imported]:
    """The runs of a card as one study."""
    card = Card(path)
    if card.get(RUNS) is None:
        raise StudyError(f"{path}: lists no runs; give the run folder, with --card {path.name}")
    said = beside(path)
    rows: list[Row] = []
    for n, item in enumerate(card.items(RUNS)):
        try:
            rows.append(_row(len(rows), item, said))
        except StudyError as error:
            bad.refuse(f"{path}: {RUNS}[{n}]: {error}")
    aim = aim_of(rows, None)
    study = study_of(
        name=path.stem,
        aim=aim,
        workload=said.workload,
        inferences=said.inferences,
        environment=said.environment,
        origin=Origin(
            kind="ccl-search",
            source=path.name,
            digests={path.name: said.digest},
            framework=said.framework,
            direction=direction_of(aim),
            notes=(DECLARED, SEVERAL, *bad.taken()),
        ),
        rules=rules_of(fixed_batch=False),
    )
    yield imported(study, rows)


def _row(ordinal: int, item: Mapping[object, object], said: Beside) -> Row:
    config = _plain(item.get("config"))
    metrics = _numbers(item.get("metrics"))
    score, error, program = item.get("score"), item.get("error_msg"), item.get("policy")
    return Row(
        text=json.dumps([config, metrics, str(score), str(item.get("status")), str(error)]),
        config=config,
        succeeded=item.get("status") == "success",
        score=score if isinstance(score, float) else float(score) if is_number(score) else None,
        least_score=0,
        step_s=positive(metrics.get(STEP_TIME)),
        ranks=rank_count(config),
        tokens=said.workload.tokens_per_step,
        tokens_declared=True,
        published=published_of(metrics),
        error=error if isinstance(error, str) else "",
        program=program if isinstance(program, str) else None,
        author=author_of(ordinal),
    )


def _plain(table: object) -> dict[str, Value]:
    """The settings of a run; those that are null were not set."""
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise StudyError(f"config is {shown(table)}, no table")
    for knob, value in table.items():
        if not isinstance(knob, str) or not isinstance(value, bool | int | float | str | None):
            raise StudyError(f"config: {shown(knob)} is {shown(value)}, no plain value")
    return {knob: value for knob, value in table.items() if value is not None}


def _numbers(table: object) -> dict[str, float | None]:
    if not isinstance(table, dict):
        return {}
    return {k: float(v) for k, v in table.items() if isinstance(k, str) and is_number(v)}
