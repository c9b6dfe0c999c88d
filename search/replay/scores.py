"""Score a study by current metrics, and compare a repeated search with its record."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path

from evaluator.evaluate import evidence
from evaluator.metrics.registry import ALIASES, Definition, definitions, measure_each
from evaluator.objective import AT_SEED, Scoring
from records.llm_exchange import LlmExchange
from records.store.rows import PendingTrial, StudyRow
from records.store.store import Store
from records.study import Study
from records.trial import (
    Config,
    Failed,
    History,
    Measured,
    MetricValue,
    Outcome,
    Policy,
    Repeat,
    Score,
    Trial,
)
from search.llm.transcripts import difference, recorded_turns
from search.loop.leader import counted
from search.loop.study_result import (
    Rescored,
    StudyResult,
    rescore_history,
    same_definitions,
    stored_definitions,
    with_computed,
)
from search.replay.metrics import as_computed, computable, compute_trials, needs_traces, works
from search.replay.rerun import Recorded
from search.strategies.base import change_words
from search.views.study import PURPOSES

SAME_WITHIN = 1e-9
"""Of a value: sums in another order differ by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTrial:
    """A trial with its score by recorded values, and by values computed now.

    None is a trial without a score. `changed` are metrics whose value or version is another one
    today, as they were and as they are; `unread` says why files cannot be read.
    """

    trial: Trial
    then: Score | None
    now: Score | None
    changed: tuple[tuple[MetricValue | None, MetricValue | None], ...]
    unread: str | None

    @property
    def is_same(self) -> bool:
        """Whether the score is what it was."""
        if self.then is None or self.now is None:
            return self.then is self.now
        close = math.isclose(self.then.value, self.now.value, rel_tol=SAME_WITHIN)
        return close and self.then.broken == self.now.broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescore:
    """A study scored again: `then` by recorded values, `now` by values computed now.

    `newer` are metrics of which the study has values of older versions, with both versions.
    """

    then: Rescored
    now: Rescored
    trials: tuple[ScoredTrial, ...]
    newer: Mapping[str, tuple[int, int]]

    @property
    def same(self) -> bool:
        """Whether every score and the leader are what they were."""
        leaders = self.then.finding.winner, self.now.finding.winner
        return leaders[0] == leaders[1] and all(each.is_same for each in self.trials)


def score_again(row: StudyRow, store: Store, asked: Study, metrics_file: Path | None) -> Rescore:
    """Compute what the objectives and limits of `asked` read, and score by it.

    Nothing is launched or stored. What has no definition at hand, and files that cannot be read,
    leave the recorded values. Raises `StudyError` where `asked` is unclear.
    """
    computed = store.computed_metrics(row.id)
    found = definitions(metrics_file)
    own = [each.metric for each in found.known if each.metric.name in found.from_file]
    stored = (m for m in stored_definitions(computed) if m.name not in found.from_file)
    added = (*own, *stored)  # nothing installed defines them
    history = with_computed(store.history(row.id), computed)
    repeats = counted(store.repeats(row.id), row.study.measure)
    then = rescore_history(row, history, same_definitions(repeats, history), asked, added)
    names = _names_read(then.scoring)
    known = [each for each in found.known if each.metric.name in names]
    by_name = {each.metric.name: each for each in known}
    metrics = {name: each.metric for name, each in by_name.items()}
    due, artifacts = list(works(row.study, history, known)), store.root / "artifacts"
    with closing(compute_trials(due, metrics, artifacts, metrics_file)) as answers:
        answered = {answer.ordinal: answer for answer in answers}
    today = {n: tuple(as_computed(answer, by_name)) for n, answer in answered.items()}
    recomputed = with_computed(history, today)
    again = tuple(_measured_today(repeat, row.study, known) for repeat in repeats)
    seen = rescore_history(row, recomputed, same_definitions(again, recomputed), asked, added)
    pairs = zip(history, then.history, seen.history, recomputed, strict=True)
    return Rescore(
        then=then,
        now=seen,
        trials=tuple(
            ScoredTrial(
                trial=trial,
                then=old.score,
                now=new.score,
                changed=_changed(trial, recomputed_trial, names),
                unread=next(iter(answered[trial.ordinal].unread.values()), None)
                if trial.ordinal in answered
                else None,
            )
            for trial, old, new, recomputed_trial in pairs
        ),
        newer=_newer(history, found.known),
    )


def _names_read(scoring: Scoring) -> frozenset[str]:
    """The metrics that objectives and limits name."""
    expressions = [one.expression for one in scoring.objectives]
    expressions += (one.expression for one in scoring.limits)
    names = {name.removesuffix(AT_SEED) for each in expressions for name in each.names}
    return frozenset(names | {ALIASES[name] for name in names if name in ALIASES})


def _measured_today(repeat: Repeat, study: Study, known: Sequence[Definition]) -> Repeat:
    """A launch that was made again, with what samples say today; traces are not read for it."""
    outcome = repeat.outcome
    if not isinstance(outcome, Measured) or outcome.contexts or outcome.measurement.imported:
        return repeat
    sampled = [each.metric for each in known if not needs_traces(each.metric)]
    measures = measure_each(sampled, evidence(study, outcome.measurement, None))
    values = {value.name: value for value in (*outcome.metrics, *measures.values)}
    left = tuple(value for name, value in values.items() if name not in measures.absent)
    return replace(repeat, outcome=replace(outcome, metrics=left))


def _changed(
    trial: Trial, recomputed: Trial, names: frozenset[str]
) -> tuple[tuple[MetricValue | None, MetricValue | None], ...]:
    old, new = _values(trial), _values(recomputed)
    pairs = ((old.get(name), new.get(name)) for name in sorted({*old, *new} & names))
    return tuple(pair for pair in pairs if not _is_equal(*pair))


def _is_equal(was: MetricValue | None, now: MetricValue | None) -> bool:
    if was is None or now is None:
        return was is now
    return was.version == now.version and math.isclose(was.value, now.value, rel_tol=SAME_WITHIN)


def _values(trial: Trial) -> dict[str, MetricValue]:
    metrics = trial.outcome.metrics if isinstance(trial.outcome, Measured) else ()
    return {value.name: value for value in metrics}


def _newer(history: History, known: Sequence[Definition]) -> dict[str, tuple[int, int]]:
    """Metrics of which a newer version is at hand than some trial has, and both versions."""
    found: dict[str, tuple[int, int]] = {}
    for trial in history:
        if not isinstance(trial.outcome, Measured):
            continue
        fitting = computable(known, trial.outcome)
        versions = {each.metric.name: each.metric.version for each in fitting}
        for name, value in _values(trial).items():
            if versions.get(name, 0) > value.version:
                oldest = min(value.version, found.get(name, (value.version, 0))[0])
                found[name] = oldest, versions[name]
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCheck:
    """What differs in one trial, in words, most telling first; nothing where it is the same.

    `since` is the number of trials that had ended when it first did.
    """

    ordinal: int
    author: str
    config: Config | None
    differs: tuple[str, ...]
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What differs in each recorded trial, and in the finding."""

    trials: tuple[TrialCheck, ...]
    finding: tuple[str, ...]

    @property
    def first(self) -> str | None:
        """What differs first, and where; None where all is the same."""
        differing = [trial for trial in self.trials if trial.differs]
        if differing:
            trial = min(differing, key=lambda each: each.since)
            return f"trial {trial.ordinal}: {trial.differs[0]}"
        return f"the finding: {self.finding[0]}" if self.finding else None


def compare_replay(record: Recorded, again: Recorded) -> Checks:
    """Compare a record with what a replay of it left."""
    ours = {each.ordinal: each for each in again.proposed}
    theirs = {each.ordinal: each for each in record.proposed}
    ordinals = sorted({*ours, *theirs})
    return Checks(
        trials=tuple(_check(n, theirs.get(n), ours.get(n), record, again) for n in ordinals),
        finding=tuple(_finding(record.finding, again.finding)) if record.finding else (),
    )


def _check(
    ordinal: int,
    recorded: Trial | PendingTrial | None,
    replayed: Trial | PendingTrial | None,
    record: Recorded,
    again: Recorded,
) -> TrialCheck:
    known, since = recorded or replayed, ordinal
    assert known is not None
    if recorded is None or replayed is None:
        differs = ["not recorded" if recorded is None else "not proposed again"]
    else:
        talks = record.exchanges.get(ordinal), again.exchanges.get(ordinal)
        differs = [
            *_policy(recorded.policy, replayed.policy),
            *_exchange(*talks),
            *_ending(recorded, replayed),
        ]
        then, now = (_repeats(ordinal, each.repeats) for each in (record, again))
        if then != now:
            first, words = _first_difference(then, now)
            since = since if differs else first
            differs.append(words)
    return TrialCheck(
        ordinal=ordinal,
        author=known.policy.author,
        config=known.config if isinstance(known, Trial) else None,
        differs=tuple(differs),
        since=since,
    )


def _policy(recorded: Policy, replayed: Policy) -> Iterator[str]:
    if recorded.source != replayed.source:
        lines = ([*each.source.splitlines(), ""] for each in (recorded, replayed))
        pairs = enumerate(zip(*lines, strict=False), start=1)
        line = next((n for n, (one, other) in pairs if one != other), None)
        yield "policy" if line is None else f"policy, from line {line}"
    if recorded.author != replayed.author:
        yield f"author {replayed.author} instead of {recorded.author}"
    if (recorded.rationale, recorded.parent) != (replayed.rationale, replayed.parent):
        yield "rationale" if recorded.rationale != replayed.rationale else "parent of the policy"
    if recorded.prediction != replayed.prediction:
        yield "what was expected of the policy"


def _exchange(recorded: LlmExchange | None, replayed: LlmExchange | None) -> Iterator[str]:
    if recorded is None or replayed is None:
        if recorded is not replayed:
            yield "model asked, and not before" if replayed else "model not asked, but before"
        return
    ours, theirs = recorded_turns(replayed), recorded_turns(recorded)
    if len(ours) != len(theirs):
        yield f"{len(ours)} requests to the model instead of {len(theirs)}"
        return
    for one, other in zip(ours, theirs, strict=True):
        if one.digest != other.digest:
            yield f"request to the model: {difference(one.body, other.body)}"
            return
    if [one.answers for one in ours] != [other.answers for other in theirs]:
        yield "answers of the model"
    if recorded.result != replayed.result:
        yield f"exchange ended with {replayed.result!r} instead of {recorded.result!r}"


def _ending(recorded: Trial | PendingTrial, replayed: Trial | PendingTrial) -> Iterator[str]:
    if not isinstance(recorded, Trial) or not isinstance(replayed, Trial):
        if isinstance(recorded, Trial):
            yield "not finished again"
        return
    if recorded.config != replayed.config:
        if recorded.config is None or replayed.config is None:
            yield f"configuration {replayed.config} instead of {recorded.config}"
        else:
            yield f"configuration: {change_words(recorded.config, replayed.config)}"
    if _bare(recorded.outcome) != _bare(replayed.outcome):
        ends = (each.outcome for each in (replayed, recorded))
        yield " instead of ".join(str(e) if isinstance(e, Failed) else "measured" for e in ends)
    if recorded.score != replayed.score:
        yield "score"


def _bare(outcome: Outcome) -> Outcome:
    """The outcome without the files that a replay has no use for."""
    contexts = tuple(replace(one, outcome=_bare(one.outcome)) for one in outcome.contexts)
    return replace(outcome, artifacts=(), contexts=contexts)


def _repeats(ordinal: int, repeats: Sequence[Repeat]) -> Sequence[Repeat]:
    own = (repeat for repeat in repeats if repeat.ordinal == ordinal)
    return [replace(repeat, outcome=_bare(repeat.outcome)) for repeat in own]


def _first_difference(recorded: Sequence[Repeat], replayed: Sequence[Repeat]) -> tuple[int, str]:
    """Return after how many trials these launches are no longer the same, and which differs."""
    pairs = zip_longest(recorded, replayed)
    pair = [each for each in next(two for two in pairs if two[0] != two[1]) if each is not None]
    words = f"launch {PURPOSES[pair[0].purpose]}, round {pair[0].round + 1}"
    if len(recorded) != len(replayed):
        words = f"launched again {len(replayed)} times instead of {len(recorded)}"
    return min(each.series for each in pair), words


def _finding(recorded: StudyResult, replayed: StudyResult | None) -> Iterator[str]:
    if replayed is None:
        yield "none"
        return
    for part in fields(StudyResult):
        before, now = getattr(recorded, part.name), getattr(replayed, part.name)
        if before != now:
            yield f"{part.name.replace('_', ' ')} {now} instead of {before}"
