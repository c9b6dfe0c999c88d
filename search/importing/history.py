"""A study of ours out of what another tool's record tells, with its space and its trials."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from evaluator.objective import Scoring, scoring_of
from records.codec import to_json
from records.errors import StudyError
from records.history import History
from records.rule import Rule, facts
from records.study import Budget, Constraint, Dimension, SearchSpace, Study, Value
from records.trial import Config, Trial
from search.finding import find
from search.importing.imported import Imported, stable_id
from search.importing.row import MOST_KNOBS, Row, trial_of
from search.standing import standing

MOST_RANKS_IN_ALL: Final = 10_000_000
ENDED: Final = "it ended elsewhere, and was read from a record of it"


def imported(study: Study, rows: Sequence[Row]) -> Imported:
    """The study with all its trials; raises `StudyError` where nothing was tried.

    Its space is what was tried, with those of its constraints that name nothing else.
    """
    if not rows:
        raise StudyError(f"study {study.name!r} has no trial")
    if sum(row.ranks or 1 for row in rows) > MOST_RANKS_IN_ALL:
        raise StudyError(f"study {study.name!r} has over {MOST_RANKS_IN_ALL} ranks in all trials")
    study = replace(
        study,
        space=_space(study, rows),
        budget=Budget(trials=len(rows), launches=len(rows)),
    )
    scoring = scoring_of(study)
    trials = tuple(_trials(study, rows, scoring))
    led = standing(History(trials), (), scoring, study.measure)
    finding = find(led, (), scoring, study.measure, ENDED)
    content = "\n".join(row.text for row in rows)
    return Imported(
        id=stable_id(study.name, content),
        study=study,
        trials=trials,
        summary=to_json(finding),
    )


def _trials(study: Study, rows: Sequence[Row], scoring: Scoring) -> Iterator[Trial]:
    alike: dict[Config, list[tuple[int, Row]]] = defaultdict(list)
    for ordinal, row in enumerate(rows):
        same = alike[Config(row.config)]
        yield trial_of(ordinal, row, same, study, scoring)
        same.append((ordinal, row))


def _space(study: Study, rows: Sequence[Row]) -> SearchSpace:
    tried: dict[str, set[tuple[str, Value]]] = defaultdict(set)
    for row in rows:
        for knob, value in row.config.items():
            tried[knob].add((type(value).__name__, value))
    if len(tried) > MOST_KNOBS:
        raise StudyError(f"study {study.name!r} has {len(tried)} knobs; at most {MOST_KNOBS}")
    known = tried.keys() | facts(study.workload, study.environment).keys()
    return SearchSpace(
        dimensions=tuple(
            Dimension(name=knob, choices=tuple(value for _, value in sorted(values, key=_rank)))
            for knob, values in tried.items()
        ),
        constraints=tuple(c for c in study.space.constraints if _names(c) <= known),
    )


def _names(constraint: Constraint) -> frozenset[str]:
    return Rule.of(constraint).expression.names


def _rank(typed: tuple[str, Value]) -> tuple[str, float, str]:
    kind, value = typed
    return kind, 0.0 if isinstance(value, str) else float(value), str(value)
