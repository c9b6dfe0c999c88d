"""Everything that the sections of a report need from the store, read once."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import typer
from rich.table import Table
from rich.text import Text

from evaluator.launchers.cluster.nodes import slow_node_words
from evaluator.objective import Scoring, scoring_of
from evaluator.timing.decision import Spread, Verdict
from policies.space import Space
from records.errors import StudyError
from records.llm_exchange import ModelUse
from records.machine import Machine, NodeRecord
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Measure, Study
from records.trial import (
    Failed,
    FailureKind,
    History,
    Measured,
    MetricValue,
    Purpose,
    Repeat,
    Trial,
)
from search.loop.budget import HOUR_S, launches_used, lost_launches, nodes_usd
from search.loop.leader import counted, left_out_rounds, study_leader
from search.loop.study_result import StudyResult, best_result, final_result, find, trial_spread
from search.report.explored import (
    StudyFront,
    StudyHistory,
    StudyKnobs,
    are_too_many,
    repeat_spreads,
    repeats_of,
    spread_of_trial,
    study_front,
    study_history,
    study_knobs,
)
from search.settings import status
from search.storage import absence
from search.study.spaces import estimate_words, space_of
from search.transfer.trust import launch_lines
from search.views.console import Terminal, on_terminal
from search.views.diagnosis import diagnosis_of, diagnosis_words
from search.views.format import (
    comparison_words,
    format_count,
    format_difference,
    one_line,
    remarks,
    spread_words,
)
from search.views.machine import Disturbed, disturbed_among, disturbed_words, machine_of
from search.views.study import (
    PURPOSES,
    REMEDY,
    baseline_words,
    context_finding_words,
    front_words,
    inert_words,
    limit_words,
    node_hours_words,
    noise_words,
    objective_words,
    race_words,
    results_in_contexts,
    settings_words,
    use_words,
)
from search.views.trial import Line, TrialRecord

if TYPE_CHECKING:
    from search.loop.learned import LearnedConstraint

CAUSE_CHARS = 200
MORE_TRIALS = 5
MOST_NAMED = 8
CONCLUSIONS = ("undecided", "best", "against the seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """What is stored about a study and its report needs."""

    row: StudyRow
    history: History
    launch_count: int
    store: Path
    purposes: Mapping[Purpose, int] = field(default_factory=dict)
    """How many launches were repeated, by purpose."""
    lost: Mapping[FailureKind, int] | None = None
    """How many launches the infrastructure ended, by how; None where not all were read."""
    disturbed: Disturbed | None = None
    """Of all launches, those that something else on the machine disturbed."""
    left_out_count: int = 0
    """Rounds that were disturbed or lost a launch, and were replaced."""
    uses: tuple[ModelUse, ...] = ()
    """The use of each language model."""
    nodes: tuple[NodeRecord, ...] = ()
    """The nodes of a cluster that the last run was given."""
    node_s: float | None = None
    """How long nodes were held, in seconds times nodes; None where that is not counted."""

    @classmethod
    def of(cls, study_id: str, store: Store) -> Self:
        """Read it from the store."""
        row = store.find(study_id)
        history, repeats = study_leader(row, store).history, store.repeats(study_id)
        return cls(
            row=row,
            history=history,
            launch_count=launches_used(history, repeats),
            purposes=Counter(repeat.purpose for repeat in repeats),
            lost=lost_launches(history, repeats),
            left_out_count=len(left_out_rounds(repeats, row.study.measure)),
            uses=store.model_uses(study_id),
            nodes=next((run.nodes for run in reversed(store.runs(study_id)) if run.nodes), ()),
            node_s=store.node_s(study_id),
            store=store.root,
            disturbed=disturbed_among(launch.outcome for launch in (*history, *repeats)),
        )


def print_report(finding: StudyResult, record: StudyRecord, store_flag: str) -> None:
    """Print the closing report."""
    print_lines(report_lines(finding, record, store_flag))


def print_lines(lines: Iterable[Line]) -> None:
    """Print labelled lines: a table on a terminal, plain lines elsewhere."""
    if not on_terminal():
        for label, words in lines:
            typer.echo(f"{label}: {words}")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, words in lines:
        table.add_row(label, Text(words, style="bold green" if label in CONCLUSIONS else ""))
    Terminal(highlight=False).print("", table)


def report_lines(finding: StudyResult, record: StudyRecord, store_flag: str) -> tuple[Line, ...]:
    """The closing report; `store_flag` is what commands need to find the store."""
    study = record.row.study
    left_out = format_count(record.left_out_count, "disturbed or incomplete round")
    return (
        ("stopped", finding.stop_reason),
        *origin_lines(record),
        ("trials", _trials_words(record)),
        *_lines("lost launches", _lost_words(record.lost)),
        *(("model", use_words(use, study.llm)) for use in record.uses),
        *_lines("nodes", None if record.node_s is None else node_hours_words(record.node_s, study)),
        *(("slow", words) for words in slow_node_words(record.nodes)),
        *_failure_lines(record.history),
        *_lines("limits", limit_words(record.history)),
        *_lines("disturbed", disturbed_words(record.disturbed) if record.disturbed else None),
        *(
            [("left out", f"{left_out}, replaced by further rounds")]
            if record.left_out_count
            else []
        ),
        *judged_lines(finding, study.measure),
        *_lines("baseline", baseline_words(study, record.history)),
        *result_lines(finding, record),
        ("record", f"study {record.row.id} in {record.store}"),
        *(("next", command + store_flag) for command in _next_commands(finding, record)),
    )


def _lines(label: str, words: str | None) -> list[Line]:
    return [] if words is None else [(label, words)]


def origin_lines(record: StudyRecord) -> Iterator[Line]:
    """The source of an imported study, what launching it would run, and what it rests on."""
    origin = record.row.study.origin
    if origin is not None:
        framework = "" if origin.framework is None else f", of {origin.framework}"
        yield "imported", f"{origin.source} ({origin.kind}){framework}"
        yield from (("note", note) for note in origin.notes)
        yield from launch_lines(record.row.study)
    yield from (("card", sentence) for sentence in record.row.study.inferences)
    if record.row.study.prior is not None:
        yield "prior", f"configurations were ranked by {estimate_words(record.row.study)}"
    for best in record.row.study.earlier:
        work = f"other work: {best.differs}" if best.differs else "the same work"
        yield "earlier", f"the best of study {best.study} was a first candidate ({work})"


def _trials_words(record: StudyRecord) -> str:
    measured, history, purposes = len(record.history.measured), record.history, record.purposes
    limit = record.row.study.budget.launch_limit
    repeats = ", ".join(f"{purposes[p]} {PURPOSES[p]}" for p in Purpose if p in purposes)
    return (
        f"{measured} measured, {len(history) - measured} failed; {record.launch_count} launches of "
        f"at most {limit}{f', repeats: {repeats}' if repeats else ''}"
    )


def _lost_words(lost: Mapping[FailureKind, int] | None) -> str | None:
    """How many launches the infrastructure ended, and how; None where it ended none."""
    if not lost:
        return None
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(lost.items()))
    return f"{kinds}; not the configurations' fault, and nothing was learned from them"


def _failure_lines(history: History) -> Iterator[Line]:
    """For each kind of failure how many there were, and the first with its cause."""
    failures = [(t.ordinal, t.outcome) for t in history if isinstance(t.outcome, Failed)]
    for kind, count in Counter(failed.kind for _, failed in failures).most_common():
        ordinal, first = next((n, failed) for n, failed in failures if failed.kind is kind)
        yield "failed", failures_words(count, ordinal, first)


def failures_words(count: int, ordinal: int, first: Failed) -> str:
    """How many trials failed as this one did, the first of them, and its cause."""
    whose = ", not the configuration's fault" if first.kind.is_infrastructure else ""
    cause = one_line(first.message, CAUSE_CHARS)
    return f"{count} {first.kind}{whose}; first in trial {ordinal}: {cause}"


def judged_lines(finding: StudyResult, measure: Measure) -> list[Line]:
    """How noisy launches are, and how every race ended."""
    noise = finding.noise
    return [
        *_lines("noise", noise_words(noise, measure) if noise else None),
        *(("compared", race_words(race)) for race in finding.races),
    ]


def result_lines(finding: StudyResult, record: StudyRecord) -> list[Line]:
    """The best with its evidence; the history may lack trials that the finding does not name."""
    front = [("front", words) for words in front_words(finding.front, record.history)]
    winner = None if finding.winner is None else record.history.find(finding.winner)
    if winner is None or finding.result is None:
        limited = "every measured configuration breaks a limit"
        why = limited if record.history.measured else "no configuration could be measured"
        return [("best", f"none, because {why}"), *front]
    study = record.row.study
    settings = settings_words(winner.config, study) if winner.config is not None else ""
    diagnosis = diagnosis_of(winner.outcome)
    return [
        *_lines("undecided", undecided_line(finding, record.history)),
        ("best", f"trial {winner.ordinal}: {settings}"),
        (study.objective.expression, spread_words(finding.result, finding.unit)),
        *(("caveat", caveat) for caveat in remarks(winner)),
        *_lines("caveat", _other_steps(winner, record.history)),
        *_lines("caveat", finding.confirming.caveat if finding.confirming else None),
        *_lines("where time goes", diagnosis_words(diagnosis) if diagnosis else None),
        ("against the seed", _against_seed(finding, record.history)),
        *(context_finding_words(found) for found in finding.contexts),
        *_tie_lines(finding, winner, record.history),
        *_lines("not ruled out", _not_ruled_out(finding)),
        *(("inert", inert_words(knob)) for knob in finding.inert),
        *(
            ("unreliable", f"trial {ordinal} failed when it was repeated")
            for ordinal in finding.unreliable
        ),
        *front,
    ]


RACE = "races with the seed would tell (cclsearch race)"


def undecided_line(finding: StudyResult, history: History) -> str | None:
    """Return that nothing was decided against the seed, and what would help; else None."""
    same = _same_work(finding)
    others = [n for n in finding.not_ruled_out if n not in same and n not in finding.unlikely]
    if finding.winner != 0 and undecided_words(finding):
        return f"trial {finding.winner} is not shown to be faster or slower than the seed; {REMEDY}"
    ahead = sorted(_ahead_of_seed(finding))
    if finding.winner == 0 and (ahead or others):
        looks = "looks faster" if len(ahead) == 1 else "look faster" if ahead else "may be"
        named = listed(ahead or others)
        return f"nothing is shown to be faster than the seed, but {named} {looks}; {RACE}"
    if finding.winner != 0 and finding.against_seed is None and _is_measured(history.find(0)):
        return f"trial {finding.winner} was not compared with the seed; {RACE}"
    return None


def _ahead_of_seed(finding: StudyResult) -> list[int]:
    """Return what looks faster than a seed that wins, by its interval, the fastest first."""
    if finding.winner != 0:
        return []
    low = {n: finding.against[n].ratio_low or 0.0 for n in finding.ties if n in finding.against}
    ahead = [n for n in low if low[n] > 1 and n not in _same_work(finding)]
    return sorted(ahead, key=lambda n: -low[n])


def _same_work(finding: StudyResult) -> set[int]:
    return {n for knob in finding.inert for n in knob.ordinals if finding.winner in knob.ordinals}


def _is_measured(trial: Trial | None) -> bool:
    return trial is not None and trial.score is not None


def _against_seed(finding: StudyResult, history: History) -> str:
    if finding.winner == 0 and undecided_line(finding, history):
        return "the best is the seed itself, so far undecided"
    if finding.winner == 0:
        return f"the seed is itself the best{_over_the_next(finding)}"
    seed = history.find(0)
    if seed is None:
        return "not compared, the seed has not ended"
    if isinstance(seed.outcome, Failed):
        return f"not comparable, the seed failed ({one_line(str(seed.outcome), CAUSE_CHARS)})"
    if finding.against_seed is not None:
        return comparison_words(finding.against_seed)
    if finding.confirming is None:
        return "not compared, there was no final in which both were launched"
    if finding.confirming.seed_launched:
        return "not compared, no launch of the seed in the final was measured"
    return "not compared, the seed was not launched in the final"


def _over_the_next(finding: StudyResult) -> str:
    """By how much the winner is better than the best of the finalists shown to be worse."""
    worse = {n: each for n, each in finding.against.items() if each.verdict is Verdict.FAST}
    if not worse:
        return ""
    ordinal, found = max(worse.items(), key=lambda item: item[1].ratio or 0.0)
    return f", {comparison_words(found, names=('', f'trial {ordinal}'))}"


def _other_steps(winner: Trial, history: History) -> str | None:
    """Return how the work of the winner's step differs from that of the seed's, if it does."""
    tokens = [
        trial.outcome.measurement.tokens_per_step
        for trial in (winner, history.find(0))
        if trial is not None and isinstance(trial.outcome, Measured)
    ]
    if len(tokens) < 2 or tokens[0] == tokens[1]:
        return None
    return (
        f"its step processes {tokens[0]} tokens, the seed's {tokens[1]}: the batch size changes "
        "how well a model trains, so check the loss too"
    )


def undecided_words(finding: StudyResult) -> str | None:
    """Why a best is not shown to be better than the seed; None where it is, or is the seed."""
    found = finding.against_seed
    if found is None or finding.winner == 0 or found.verdict is not Verdict.UNDECIDED:
        return None
    return comparison_words(found)


def _tie_lines(finding: StudyResult, winner: Trial, history: History) -> list[Line]:
    """Finalists without a significant difference to the winner; the seed has a separate line."""
    found: list[Line] = []
    for ordinal in finding.ties:
        other = history.find(ordinal)
        if ordinal and other is not None and other.config and winner.config:
            difference = format_difference(other.config, winner.config)
            comparison = finding.against.get(ordinal)  # older records have none
            names = (f"trial {winner.ordinal}", "it")
            words = comparison_words(comparison, names=names) if comparison else "not told apart"
            joint = "" if difference.startswith("without ") else "with "
            found.append(("tied", f"trial {ordinal}, {joint}{difference}: {words}"))
    return found


def _not_ruled_out(finding: StudyResult) -> str | None:
    others = finding.not_ruled_out
    if not others:
        return None
    likely = [ordinal for ordinal in others if ordinal not in finding.unlikely]
    each = "them" if len(likely or others) > 1 else "it"
    if not likely:
        return (
            f"{listed(others)} may be as fast, but by the launches so far too little was to be "
            f"gained for the final to launch {each}"
        )
    return (
        f"{listed(likely)} may be as fast; the final did not launch {each}, and the other "
        "launches cannot tell"
    )


def listed(ordinals: Sequence[int]) -> str:
    """Return trials as text: `trial 3`, `trials 3 and 5`, `trials 3, 5 and 4 more`."""
    if len(ordinals) == 1:
        return f"trial {ordinals[0]}"
    if len(ordinals) > MOST_NAMED:
        named = ", ".join(map(str, ordinals[: MOST_NAMED - 1]))
        return f"trials {named} and {len(ordinals) - MOST_NAMED + 1} more"
    *others, last = map(str, ordinals)
    return f"trials {', '.join(others)} and {last}"


def _next_commands(finding: StudyResult, record: StudyRecord) -> Sequence[str]:
    study_id = record.row.id
    if finding.winner is None:
        launched = [trial.ordinal for trial in record.history if trial.reached_launch]
        return (f"cclsearch trial show {study_id} {launched[0] if launched else 0}",)
    return (
        f"cclsearch best {study_id} --format args",
        *(f"cclsearch race {study_id} {ordinal} 0" for ordinal in _ahead_of_seed(finding)[:1]),
        *(
            [f"cclsearch replay {study_id} --mode measure --trial all"]
            if {*finding.not_ruled_out} - {*finding.unlikely}
            else []
        ),
        *(
            []
            if record.row.study.searched_elsewhere
            else [f"cclsearch resume {study_id} --trials {MORE_TRIALS}"]
        ),
    )


def study_words(row: StudyRow) -> str:
    """Return the heading of a study: id, name, objective, and the tool it was imported from."""
    origin = row.study.origin
    imported = "" if origin is None else f", imported ({origin.kind})"
    return f"study {row.id}: {row.study.name}, objective {objective_words(row.study)}{imported}"


def study_facts(row: StudyRow, leader: Trial | None, records: Store) -> dict[str, object]:
    """Return the summary of a study for JSON; absent values are null.

    `low` and `high` bound the 95 % interval of `best` over its `launches`; two launches give
    `both` values instead.
    """
    result = best_result(row, leader, records)
    score = leader.score if leader is not None else None
    node_s = records.node_s(row.id)
    return {
        "id": row.id,
        "name": row.study.name,
        "objective": row.study.objective.expression,
        "more_objectives": [more.expression for more in row.study.more_objectives],
        "limits": list(row.study.limits),
        "strategy": row.strategy,
        "status": status(row, records),
        "created_at": row.created_at,
        "trials": records.counts(row.id).trials,
        "best": None if result is None else result.centre,
        "low": None if result is None else result.low,
        "high": None if result is None else result.high,
        "launches": None if result is None else result.launch_count,
        "both": None if result is None else result.both,
        "unit": score.unit if score is not None else None,
        "node_hours": None if node_s is None else node_s / HOUR_S,
        "nodes_usd": None if node_s is None else nodes_usd(node_s, row.study.environment),
        "caveats": None if leader is None else "; ".join(remarks(leader)) or None,
        **asdict(row.labels),
    }


def large_study_lines(
    row: StudyRow, leader: Trial | None, records: Store, store_flag: str
) -> Iterator[Line]:
    """The report of a study that is too large to be read whole."""
    if (finding := final_result(row)) is not None:
        yield "stopped", finding.stop_reason
    yield from launch_lines(row.study)
    counts = records.counts(row.id)
    launches = f"{counts.launches} launches, {counts.repeats} of them repeats"
    yield "trials", f"{counts.measured} measured, {counts.failed} failed; {launches}"
    for kind, count in records.failures(row.id).items():
        yield "failed", f"{count} {kind}"
    for use in records.model_uses(row.id):
        yield "model", use_words(use, row.study.llm)
    if (node_s := records.node_s(row.id)) is not None:
        yield "nodes", node_hours_words(node_s, row.study)
    yield from _best_lines(row, leader, records)
    yield "status", status(row, records)
    yield "record", f"study {row.id} in {records.root}"
    if leader is not None:
        yield "next", f"cclsearch best {row.id} --format args{store_flag}"


def _best_lines(row: StudyRow, leader: Trial | None, records: Store) -> Iterator[Line]:
    result = best_result(row, leader, records)
    if leader is None or leader.score is None or result is None:
        yield "best", "none: no measured configuration satisfies all limits"
        return
    settings = settings_words(leader.config, row.study) if leader.config is not None else ""
    yield "best", f"trial {leader.ordinal}: {settings}"
    yield row.study.objective.expression, spread_words(result, leader.score.unit)
    for caveat in remarks(leader):
        yield "caveat", caveat


UNFINISHED_REASONS = {
    "running": "the search is still running",
    "interrupted": "the search was interrupted and can be resumed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """A stored study with all that its report shows.

    `finding` is the final result, or the current one while the search runs. `space` is None where
    it cannot be built from the stored study.
    """

    record: StudyRecord
    explored: StudyHistory
    front: StudyFront
    knobs: StudyKnobs
    status: str
    finding: StudyResult
    scoring: Scoring
    repeats: tuple[Repeat, ...]
    space: Space | None
    learned: "tuple[LearnedConstraint, ...]"
    metrics: Mapping[int, tuple[MetricValue, ...]]
    machines: Mapping[str, Machine | None]
    store_flag: str
    summary: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The closing report that `cclsearch show` prints, by label."""

    @classmethod
    def of(cls, row: StudyRow, store: Store, store_flag: str) -> Self:
        """Read a study from the store; `store_flag` is what commands need to find it again."""
        record, repeats = StudyRecord.of(row.id, store), store.repeats(row.id)
        scoring = scoring_of(row.study).over(record.history)
        now = status(row, store)
        finding = final_result(row) or _current_finding(row, store, scoring, now)
        space = known_space(row.study)
        summary: dict[str, tuple[str, ...]] = {}
        for label, words in report_lines(finding, record, store_flag):
            summary[label] = (*summary.get(label, ()), words)
        return cls(
            record=record,
            explored=study_history(row, store),
            front=study_front(row, store),
            knobs=study_knobs(row, store),
            status=now,
            finding=finding,
            scoring=scoring,
            repeats=repeats,
            space=space,
            learned=_learned(space, record.history, row.study.revoked),
            metrics=store.metric_values(row.id),
            machines=_machines(record.history, repeats, store),
            store_flag=store_flag,
            summary=summary,
        )

    @property
    def study_id(self) -> str:
        """Id of the study."""
        return self.record.row.id

    @property
    def study(self) -> Study:
        """The study itself."""
        return self.record.row.study

    @property
    def history(self) -> History:
        """All trials, and who leads."""
        return self.record.history

    @property
    def best(self) -> Trial | None:
        """The trial that won, or leads so far; None where none may."""
        winner = self.finding.winner
        return None if winner is None else self.history.find(winner)

    @property
    def seed(self) -> Trial | None:
        """The trial that all others are measured against."""
        return self.history.find(0)

    @property
    def is_finished(self) -> bool:
        """Whether the search came to its end."""
        return self.status == "finished"

    def reached(self, trial: Trial) -> Spread | None:
        """The number of a trial, over the launches that count; None where it has no score."""
        return trial_spread(trial, self.history)

    def lines(self, *labels: str) -> tuple[tuple[str, str], ...]:
        """What the closing report says under these labels."""
        return tuple((label, words) for label in labels for words in self.summary.get(label, ()))


def _current_finding(row: StudyRow, store: Store, scoring: Scoring, now: str) -> StudyResult:
    reason = UNFINISHED_REASONS.get(now, "the search did not finish")
    launches = counted(store.repeats(row.id), row.study.measure)
    return find(study_leader(row, store), launches, scoring, row.study.measure, reason)


def _machines(
    history: History, repeats: Sequence[Repeat], store: Store
) -> dict[str, Machine | None]:
    """What launches ran on, by digest; None for a description that cannot be read any more."""
    outcomes = [trial.outcome for trial in history] + [repeat.outcome for repeat in repeats]
    launched = {each.machine: each for one in outcomes if (each := one.launched) is not None}
    return {
        digest: machine_of(each, store) for digest, each in launched.items() if digest is not None
    }


def known_space(study: Study) -> Space | None:
    """Return the space, if need be without what the study's recipe derives."""
    for build in (
        space_of,
        lambda study: Space(study.space, study.workload, study.usable_environment),
    ):
        with suppress(StudyError):  # a record from elsewhere may lack what the recipe needs
            return build(study)
    return None


def learned_for(study: Study, history: History) -> "tuple[LearnedConstraint, ...]":
    """Return the constraints learned from failures; none where the space cannot be listed."""
    return _learned(known_space(study), history, study.revoked)


def _learned(
    space: Space | None, history: History, revoked: Sequence[str]
) -> "tuple[LearnedConstraint, ...]":
    from search.loop.learned import learned_constraints  # brings numpy

    if space is None:
        return ()
    try:
        return learned_constraints(space, history, revoked)
    except StudyError:  # too many configurations to be listed
        return ()


MOST_SIBLINGS = 100


def trial_record(row: StudyRow, trial: Trial, best: Trial | None, store: Store) -> TrialRecord:
    """Read what the document of a trial shows; `best` is the trial that leads."""
    ordinal, artifacts = trial.ordinal, trial.outcome.artifacts
    again = [each.outcome for each in repeats_of(row, store) if each.ordinal == ordinal]
    outcomes = [trial.outcome, *(one.outcome for one in trial.outcome.contexts)]
    launches = [one.launched for one in outcomes if one.launched is not None]
    both = (store.trial(row.id, 0), store.first_measured(row.id))
    beginning = {each.ordinal: each for each in both if each is not None}
    return TrialRecord(
        study_id=row.id,
        study=row.study,
        trial=trial,
        reached=spread_of_trial(trial, repeat_spreads(row, store)),
        best=best,
        parent=_parent(row, trial, store),
        decisions=tuple(_decision_lines(row, trial, store)),
        disturbed=disturbed_among([trial.outcome, *again]),
        contexts=results_in_contexts(trial, History(tuple(beginning.values())), row.study)
        if trial.outcome.contexts
        else (),
        metrics=store.metric_values(row.id, ordinal).get(ordinal, ()),
        computed=store.computed_metrics(row.id, ordinal).get(ordinal, ()),
        machines={one.machine: machine_of(one, store) for one in launches if one.machine},
        places={
            each.name: absence(row.id, each.digest, store) or str(store.artifacts.path(each.digest))
            for each in artifacts
        },
    )


def _parent(row: StudyRow, trial: Trial, store: Store) -> Trial | None:
    """Return the trial before this one that had the parent of its policy."""
    parent = trial.policy.parent
    if parent is None:
        return None
    tried = store.policy_results(row.id, [parent], MOST_SIBLINGS).get(parent, ())
    before = [result.ordinal for result in tried if result.ordinal < trial.ordinal]
    return store.trial(row.id, before[-1]) if before else None


def _decision_lines(row: StudyRow, trial: Trial, store: Store) -> Iterator[Line]:
    """Yield what its repeats showed, and what was decided."""
    finding = final_result(row)
    if are_too_many(row, store):
        words = f"too many in this study to be shown here; see `cclsearch show {row.id}`"
        yield "repeats", words
    elif store.counts(row.id).repeats:
        for race in study_leader(row, store).races if finding is None else finding.races:
            if trial.ordinal in (race.challenger, race.incumbent):
                yield "compared", race_words(race)
    if finding is not None:
        yield from _verdict_lines(finding, trial)


def _verdict_lines(finding: StudyResult, trial: Trial) -> Iterator[Line]:
    if finding.winner == trial.ordinal:
        yield "verdict", "the best of the study"
    elif trial.ordinal in finding.ties:
        yield "verdict", f"not distinguishable from the best, trial {finding.winner}"
    elif finding.winner is not None:
        yield "verdict", f"trial {finding.winner} is the best of the study"
    if trial.ordinal in finding.unreliable:
        yield "unreliable", "it failed by itself when its launch was repeated to confirm it"
    if any(member.ordinal == trial.ordinal for member in finding.front):
        yield "front", "no other trial beats it in all objectives"
