"""A replay as facts for programs and lines for people: what is as recorded, and what is not."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Study
from records.trial import Config, Failed, Measured, MetricValue, Trial
from search.loop.study_result import Rescored
from search.replay.measure import Decision, Holds, Source, all_hold
from search.replay.other_machine import Answer, Kind, PolicyElsewhere
from search.replay.rerun import Recorded
from search.replay.scores import Checks, Rescore, ScoredTrial
from search.views.format import (
    NO_CONFIG,
    format_decimal_bytes,
    format_difference,
    format_duration,
    format_number,
    one_line,
    score_words,
)
from search.views.machine import differences, disturbed_among, disturbed_words, machine_of
from search.views.study import objective_words
from search.views.trial import Line

REASON_CHARS, WORDS_CHARS = 300, 400
KINDS = {
    Kind.ADAPTS: "adapt to the context",
    Kind.FIXED: "decide the same everywhere",
    Kind.FAILS: "have no valid configuration in some context",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Whether everything is as recorded, and the details for programs and for people."""

    same: bool
    facts: Mapping[str, object]
    lines: Iterable[str] = ()
    verdicts: Sequence[Line] = ()


def policies_report(study_id: str, found: Sequence[PolicyElsewhere]) -> Report:
    """What policies decide in other contexts; the same if all are valid everywhere."""
    steps: dict[str, list[tuple[float, int]]] = {}
    for each in found:
        for answer in each.answers:
            if answer.step_s is not None:
                steps.setdefault(answer.place, []).append((answer.step_s, each.ordinals[0]))
    ranks = {place: [ordinal for _, ordinal in sorted(of)] for place, of in steps.items()}
    counts = Counter(each.kind for each in found)
    return Report(
        same=not counts[Kind.FAILS],
        facts={
            "study_id": study_id,
            "mode": "policy",
            **{kind.value: counts[kind] for kind in Kind},
            "policies": [_policy_facts(each, ranks) for each in found],
        },
        lines=(
            f"study {study_id}: {len(found)} policies; nothing was launched",
            *(line for each in found for line in _policy_lines(each)),
            *(f"{counts[kind]} of {len(found)} {words}" for kind, words in KINDS.items()),
            *(
                f"fastest by estimate at {place}: trial {', '.join(map(str, order[:3]))}"
                for place, order in ranks.items()
            ),
        ),
    )


def _policy_lines(each: PolicyElsewhere) -> Iterator[str]:
    ordinals = ", ".join(map(str, each.ordinals))
    trials = f"trial{'s' if len(each.ordinals) > 1 else ''} {ordinals}"
    yield f"{trials}, by {one_line(each.policy.author, 40)}: {each.kind}"
    yield f"  recorded: {each.recorded or NO_CONFIG}"
    for answer in each.answers:
        held_out = " (held out)" if answer.held_out else ""
        yield f"  {answer.place}{held_out}: {_words(answer, each.recorded)}"


def _words(answer: Answer, recorded_config: Config | None) -> str:
    """Return the decision as its difference from the recorded one, with estimates."""
    given = answer.answer
    if isinstance(given, Failed):
        return f"none, {one_line(str(given), REASON_CHARS)}"
    words = str(given) if recorded_config is None else format_difference(given, recorded_config)
    estimates = []
    if answer.step_s is not None:
        estimates.append(f"step {format_duration(answer.step_s)}")
    if answer.memory_bytes is not None:
        estimates.append(f"memory of a rank {format_decimal_bytes(answer.memory_bytes)}")
    return f"{words} (estimated: {', '.join(estimates)})" if estimates else words


def _policy_facts(each: PolicyElsewhere, ranks: Mapping[str, Sequence[int]]) -> dict[str, object]:
    places = []
    for answer in each.answers:
        given, rank = answer.answer, None
        if answer.step_s is not None:
            rank = ranks[answer.place].index(each.ordinals[0]) + 1
        places.append(
            {
                "place": answer.place,
                "held_out": answer.held_out,
                "config": dict(given.values) if isinstance(given, Config) else None,
                "fault": str(given) if isinstance(given, Failed) else None,
                "same_as_recorded": given == each.recorded,
                "estimated_step_s": answer.step_s,
                "estimated_rank": rank,
                "estimated_memory_bytes": answer.memory_bytes,
            }
        )
    return {
        "trials": each.ordinals,
        "author": each.policy.author,
        "kind": each.kind,
        "recorded": None if each.recorded is None else dict(each.recorded.values),
        "places": places,
    }


def scores_report(row: StudyRow, leader: Trial | None, today: Rescore, flag: str) -> Report:
    """Scores then and today; the same if no score and no leader changes."""
    return Report(
        same=today.same,
        facts={
            "study_id": row.id,
            "mode": "score",
            "same": today.same,
            "objective": today.now.row.study.objective.expression,
            "led": None if leader is None else leader.ordinal,
            "leads_on_record": today.then.finding.winner,
            "leads_today": today.now.finding.winner,
            "newer_versions": today.newer,
            "trials": [
                {
                    "ordinal": each.trial.ordinal,
                    "then": None if each.then is None else each.then.value,
                    "now": None if each.now is None else each.now.value,
                    "unit": "" if each.now is None else each.now.unit,
                    "same": each.is_same,
                    "changed": [[pair and asdict(pair) for pair in both] for both in each.changed],
                    "unread": each.unread,
                }
                for each in today.trials
            ],
        },
        lines=(
            f"study {row.id}: scored by {objective_words(today.now.row.study)}; nothing was "
            "launched or stored",
            *map(_score_line, today.trials),
            f"leader of the search: {'no trial' if leader is None else f'trial {leader.ordinal}'}, "
            f"by {objective_words(row.study)}",
            f"leader by the recorded values: {_leader_words(today.then)}",
            f"leader by current values: {_leader_words(today.now)}",
            *_newer_lines(today, row.id, flag),
            _verdict(today),
        ),
    )


def _newer_lines(today: Rescore, study_id: str, flag: str) -> Iterator[str]:
    if today.newer:
        newer = (f"{name} {new} (recorded {old})" for name, (old, new) in today.newer.items())
        yield f"newer versions: {', '.join(newer)}"
        yield f"next: cclsearch metrics compute --study {study_id}{flag}"


def _score_line(each: ScoredTrial) -> str:
    config = str(each.trial.config) if each.trial.config is not None else NO_CONFIG
    then, now = ("none" if score is None else score_words(score) for score in (each.then, each.now))
    words = [f"then {then}, now {now}: {_change(each)}"]
    for was, became in each.changed:
        changed = was or became
        name = "" if changed is None else changed.name
        words.append(f"{name} {_value(was)} -> {_value(became)}")
    if each.unread is not None:
        words.append(f"as recorded, since {one_line(each.unread, REASON_CHARS)}")
    return f"trial {each.trial.ordinal}  {config}  {'; '.join(words)}"


def _change(each: ScoredTrial) -> str:
    if each.is_same:
        return "same"
    if each.then is None or each.now is None or not each.then.value:
        return "differs"
    share = each.now.value / each.then.value - 1
    return f"{share:+.2%}" if share else "other limits are broken"


def _value(value: MetricValue | None) -> str:
    return "none" if value is None else f"{format_number(value.value)} (version {value.version})"


def _leader_words(scored: Rescored) -> str:
    best = scored.history.best
    if best is None or best.score is None:
        return "no trial"
    result = scored.finding.result  # over all launches of the leader
    value = format_number(best.score.value if result is None else result.centre)
    return f"trial {best.ordinal}, {value} {best.score.unit}".rstrip()


def _verdict(today: Rescore) -> str:
    if today.same:
        return f"same: {len(today.trials)} trials, the leader"
    changed = sum(not each.is_same for each in today.trials)
    moved = today.then.finding.winner != today.now.finding.winner
    return f"differs: {changed} of {len(today.trials)} trials{', the leader' if moved else ''}"


def search_report(
    row: StudyRow, record: Recorded, checks: Checks, stopped: str | None, *, resume: str | None
) -> Report:
    """What a replayed search did otherwise; `resume` continues a study that is not finished."""
    same = checks.first is None and stopped is None
    lines = [f"study {row.id}: {row.study.name}, strategy {row.strategy}"]
    for trial in checks.trials:
        config = str(trial.config) if trial.config is not None else "(no configuration)"
        lines.append(f"trial {trial.ordinal}  {trial.author}  {config}  {_result(trial.differs)}")
    if record.finding is not None:
        lines.append(f"finding  {_result(checks.finding)}")
    lines.append(_search_verdict(record, checks, stopped))
    if same and record.finding is None and resume is not None:
        lines.append(f"next: {resume}")
    facts = {
        "study_id": row.id,
        "mode": "llm",
        "same": same,
        "finished": record.finding is not None,
        "first_difference": checks.first,
        "stopped": stopped,
        "trials": [
            {
                "ordinal": trial.ordinal,
                "author": trial.author,
                "config": dict(trial.config.values) if trial.config is not None else None,
                "same": not trial.differs,
                "differs": trial.differs,
            }
            for trial in checks.trials
        ],
        "further_launches": len(record.repeats),
        "finding_differs": checks.finding,
    }
    return Report(same=same, facts=facts, lines=lines)


def _result(differs: tuple[str, ...]) -> str:
    return f"differs: {one_line('; '.join(differs), WORDS_CHARS)}" if differs else "same"


def _search_verdict(record: Recorded, checks: Checks, stopped: str | None) -> str:
    if checks.first is not None or stopped is not None:
        where = f" at {one_line(checks.first, WORDS_CHARS)}" if checks.first is not None else ""
        why = f"\nwhy: {one_line(stopped, WORDS_CHARS)}" if stopped is not None else ""
        return f"diverged{where}{why}"
    parts = f"{len(record.trials)} trials, {len(record.repeats)} further launches"
    if record.finding is None:
        return f"same so far: {parts}; the study is not finished"
    return f"same: {parts}, the finding"


def decisions_report(
    study_id: str,
    study: Study,
    source: Source,
    decisions: Sequence[Decision],
    records: Store,
    command: str,
    flag: str,
) -> Report:
    """Report every claim with its verdict, and what follows; `command` launches more."""
    holds = all_hold(decision.holds for decision in decisions)
    launches = [*(d.again for d in decisions), *(r.outcome for r in records.repeats(study_id))]
    differs, disturbed = _differences(decisions, records), disturbed_among(launches)
    more = f"{command} --rounds {2 * study.measure.max_confirm_rounds}"
    return Report(
        same=holds is Holds.CONFIRMED,
        facts={
            "event": "finished",
            "study_id": study_id,
            "mode": "measure",
            "replay_of": source.row.id,
            "holds": holds,
            "trials": [
                {
                    "ordinal": each.trial.ordinal,
                    "config": None if each.trial.config is None else dict(each.trial.config.values),
                    "holds": each.holds,
                    "claims": [asdict(claim) for claim in each.claims],
                    "launches": each.launch_count,
                }
                for each in decisions
            ],
            "machine_differs": differs,
            "launches": len(launches),
        },
        verdicts=(
            *(line for decision in decisions for line in _lines(decision)),
            *(("machine differs", words) for words in differs),
            *([] if disturbed is None else [("disturbed", disturbed_words(disturbed))]),
            ("replay", _overall(decisions, holds)),
            ("record", f"study {study_id} in {records.root}, of study {source.row.id}"),
            *(("next", each) for each in _next(study_id, source, decisions, flag)),
            *([("next", more)] if any(d.holds is Holds.UNDECIDED for d in decisions) else []),
        ),
    )


def _lines(decision: Decision) -> Iterator[Line]:
    config = decision.trial.config
    settings = NO_CONFIG if config is None else str(config)
    yield f"trial {decision.trial.ordinal}", f"{decision.holds}: {settings}"
    for claim in decision.claims:
        yield claim.name, f"{claim.holds}, {claim.why}"
        if claim.decides is not None:
            yield "to decide it", claim.decides


def _overall(decisions: Sequence[Decision], holds: Holds) -> str:
    """Return the overall verdict, and the trials that are not confirmed."""
    if len(decisions) == 1:
        return holds.value
    count = sum(decision.holds is Holds.CONFIRMED for decision in decisions)
    open_ = [d for d in decisions if d.holds is not Holds.CONFIRMED]
    others = [f"trial {d.trial.ordinal} {d.holds}" for d in open_]
    return ", ".join([f"{holds}: {count} of {len(decisions)} trials confirmed", *others])


def _differences(decisions: Sequence[Decision], records: Store) -> tuple[str, ...]:
    """Return how this machine differs from the recorded one, as far as both are known."""
    for decision in decisions:
        then = machine_of(decision.trial.outcome.launched, records)
        here = machine_of(decision.again.launched, records)
        if then is not None and here is not None:
            return differences(then, here)
    return ()


def _next(study_id: str, source: Source, decisions: Sequence[Decision], flag: str) -> Iterator[str]:
    failed = next((d for d in decisions if d.holds is Holds.NOT_CONFIRMED), None)
    if failed is not None:
        ordinal = failed.trial.ordinal
        outcomes = failed.trial.outcome, failed.again
        if all(isinstance(o, Measured) and o.breakdown is not None for o in outcomes):
            sides = f"trial:{source.row.id}:{ordinal} trial:{study_id}:{ordinal}"
            yield f"cclsearch trace diff {sides}{flag}"
        else:
            yield f"cclsearch trial show {study_id} {ordinal}{flag}"
    if not decisions or all_hold(d.holds for d in decisions) is Holds.CONFIRMED:
        yield f"cclsearch show {study_id}{flag}"
