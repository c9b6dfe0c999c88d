"""`replay`: repeat the search, decisions, launches or scores of a recorded study."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from records.errors import StoreError, StudyError
from records.machine import Machine
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import MEASURE, Study, Value
from records.trial import Config, Failed, Measured, MetricValue, Outcome, Trial
from search.cli.options import (
    JsonOption,
    MetricsFileOption,
    ObjectiveOptions,
    StoreOption,
    StudyArgument,
    StudyOptions,
    TrustOption,
    examples,
    flags_given,
    store_flag,
    takes_options,
)
from search.cli.run import Stop, face
from search.compose import check_environment, local_backend, new_study_id
from search.loop.finding import Rescored, leader_of
from search.replay.claims import (
    SEED,
    Claim,
    Decision,
    Holds,
    Source,
    all_hold,
    require_search,
    source_of,
)
from search.replay.measure import begin, measuring, measuring_study
from search.replay.other_machine import Answer, Kind, PolicyElsewhere, as_given, policies_elsewhere
from search.replay.rerun import Recorded, recorded_study, replay_study
from search.replay.scores import (
    Checks,
    Rescore,
    ScoredTrial,
    TrialCheck,
    compare_replay,
    score_again,
)
from search.report.summary import Line, print_lines
from search.settings import installed_version, open_store, status
from search.study.spaces import PreparedStudy, parts, prepare, varied_values
from search.transfer.trust import require_trust, trust
from search.views.console import Terminal
from search.views.format import (
    NO_CONFIG,
    format_decimal_bytes,
    format_difference,
    format_duration,
    format_number,
    one_line,
    parse_share,
    score_words,
)
from search.views.machine import differences, disturbed_among, disturbed_words
from search.views.study import objective_words

app = typer.Typer(rich_markup_mode=None)

OTHERWISE = 7
REASON_CHARS, WORDS_CHARS = 300, 400
WITHIN = 0.10
"""A machine changes over months, even if it is the same one."""
KINDS = {
    Kind.ADAPTS: "adapt to the context",
    Kind.FIXED: "decide the same everywhere",
    Kind.FAILS: "have no valid configuration in some context",
}
MODES = {
    "--trial": ("measure", "policy"),
    "--rounds": ("measure",),
    "--within": ("measure",),
    "--vary": ("policy",),
    "--metrics-file": ("score",),
    "--trust": ("measure",),
}
"""Options that only some modes accept, besides those of a study (policy) and objective (score)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """What to launch again, the maximum rounds, and by which share a value may be worse."""

    trial: str | None
    rounds: int | None
    within: float
    trusted: bool = False
    """Whether an imported study may launch its commands, now and later."""


@app.command(
    epilog=examples(
        "cclsearch replay 20260131-120000-ab12 --strict --json",
        "cclsearch replay --mode measure --trial all --within 5%",
        "cclsearch replay --mode policy --vary world_size=4,8 --vary global_batch=16,32",
        "cclsearch replay --mode score --objective tokens_per_s",
    )
)
@takes_options
def replay(
    *,
    study_id: StudyArgument = "",
    mode: Annotated[
        Literal["llm", "policy", "measure", "score"],
        typer.Option(
            help="What to repeat. llm: the search, with recorded LLM responses and launch "
            "results. policy: the policies' decisions, for another workload or environment. "
            "measure: launches, to check whether the recorded results hold on this machine. "
            "score: metrics and scores, from stored samples and traces.",
        ),
    ] = "llm",
    trial: Annotated[
        str | None,
        typer.Option(
            metavar="best|seed|N|all",
            help="For measure and policy: which trials. [default: best for measure, all for "
            "policy]",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="For measure: maximum rounds of launches per trial. [default: the study's, at "
            "least 12]",
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="For measure: allowance beyond the recorded interval, as machines change over "
            "time. [default: 10%]",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=A,B",
            help="For policy: values of a workload or environment field; several fields are "
            "combined. Repeatable.",
        ),
    ] = None,
    options: StudyOptions,
    objectives: ObjectiveOptions,
    metrics_file: MetricsFileOption = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help=f"Exit with status {OTHERWISE} if anything differs or is undecided.",
        ),
    ] = False,
    trust: TrustOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a recorded study and report where the results differ.

    Only --mode measure launches anything, as a new study; the old one is never changed. With
    --json that mode prints one event per line, the others one document.
    """
    given: dict[str, object] = {
        "--trial": trial,
        "--rounds": rounds,
        "--within": within,
        "--vary": vary,
    }
    given |= {"--metrics-file": metrics_file, "--trust": trust}
    flags = [(flag, MODES[flag]) for flag, value in given.items() if value]
    flags += [(flag, ("policy",)) for flag in flags_given(options)]
    flags += [(flag, ("score",)) for flag in flags_given(objectives)]
    for flag, modes in flags:
        if mode not in modes:
            raise StudyError(f"{flag} needs --mode {' or '.join(modes)}, not {mode}")
    match mode:
        case "llm":
            same = replay_search(study_id, store, as_json=as_json)
        case "measure":
            worse = WITHIN if within is None else parse_share(within, "--within")
            asked = MeasureOptions(trial=trial, rounds=rounds, within=worse, trusted=trust)
            same = repeat_launches(study_id, asked, store, as_json=as_json)
        case "policy":
            varied = varied_values(vary or ())
            same = replay_policies(
                study_id, trial or "all", options, varied, store, as_json=as_json
            )
        case "score":
            same = replay_scores(study_id, objectives, metrics_file, store, as_json=as_json)
    if strict and not same:
        raise typer.Exit(OTHERWISE)


def replay_policies(
    study_id: str,
    which: str,
    options: StudyOptions,
    varied: Mapping[str, Sequence[Value]],
    store: Path | None,
    *,
    as_json: bool,
) -> bool:
    """Run the policies of a study in other contexts; return whether all are valid everywhere."""
    with open_store(store) as records:
        row = records.find(study_id)
        history = records.history(row.id)
        best = leader_of(row, records) if which == "best" else None
        trials = _chosen(which, history.trials, best, row.id)
    study = options.study(as_given(row.study))
    console = Terminal(stderr=True)
    with console.status("running policies") as line:
        found = policies_elsewhere(
            trials, study, varied, lambda count: line.update(f"policies run: {count}")
        )
    if as_json:
        typer.echo(json.dumps(_policies_facts(row.id, found)))
    else:
        typer.echo(f"study {row.id}: {len(found)} policies; nothing was launched")
        for each in found:
            _print_policy(each)
        _print_summary(found)
    return all(each.kind is not Kind.FAILS for each in found)


def _chosen(
    which: str, trials: Sequence[Trial], best: Trial | None, study_id: str
) -> Sequence[Trial]:
    if which == "all" and trials:
        return trials
    ordinal = SEED if which == "seed" else int(which) if which.isdecimal() else None
    found = [best] if best is not None else [t for t in trials if t.ordinal == ordinal]
    if not found:
        raise StudyError(
            f"study {study_id} has no trial {which!r}; write best, seed, all or the number of a "
            f"trial, see `cclsearch show {study_id}`"
        )
    return found


def _print_policy(each: PolicyElsewhere) -> None:
    ordinals = ", ".join(map(str, each.ordinals))
    trials = f"trial{'s' if len(each.ordinals) > 1 else ''} {ordinals}"
    typer.echo(f"{trials}, by {one_line(each.policy.author, 40)}: {each.kind}")
    typer.echo(f"  recorded: {each.recorded or NO_CONFIG}")
    for answer in each.answers:
        held_out = " (held out)" if answer.held_out else ""
        typer.echo(f"  {answer.place}{held_out}: {_words(answer, each.recorded)}")


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


def _print_summary(found: Sequence[PolicyElsewhere]) -> None:
    counts = Counter(each.kind for each in found)
    for kind, words in KINDS.items():
        typer.echo(f"{counts[kind]} of {len(found)} {words}")
    for place, order in _ranks(found).items():
        typer.echo(f"fastest by estimate at {place}: trial {', '.join(map(str, order[:3]))}")


def _ranks(found: Sequence[PolicyElsewhere]) -> dict[str, list[int]]:
    """Return by place the first trials of the policies, in the order of their estimates."""
    steps: dict[str, list[tuple[float, int]]] = {}
    for each in found:
        for answer in each.answers:
            if answer.step_s is not None:
                steps.setdefault(answer.place, []).append((answer.step_s, each.ordinals[0]))
    return {place: [ordinal for _, ordinal in sorted(known)] for place, known in steps.items()}


def _policies_facts(study_id: str, found: Sequence[PolicyElsewhere]) -> dict[str, object]:
    ranks = _ranks(found)
    counts = Counter(each.kind.value for each in found)
    return {
        "study_id": study_id,
        "mode": "policy",
        **{kind.value: counts[kind.value] for kind in Kind},
        "policies": [
            {
                "trials": list(each.ordinals),
                "author": each.policy.author,
                "kind": each.kind.value,
                "recorded": None if each.recorded is None else dict(each.recorded.values),
                "places": [_answer_facts(answer, each, ranks) for answer in each.answers],
            }
            for each in found
        ],
    }


def _answer_facts(
    answer: Answer, each: PolicyElsewhere, ranks: dict[str, list[int]]
) -> dict[str, object]:
    given = answer.answer
    rank = None
    if answer.step_s is not None:
        rank = ranks[answer.place].index(each.ordinals[0]) + 1
    return {
        "place": answer.place,
        "held_out": answer.held_out,
        "config": dict(given.values) if isinstance(given, Config) else None,
        "fault": str(given) if isinstance(given, Failed) else None,
        "same_as_recorded": given == each.recorded,
        "estimated_step_s": answer.step_s,
        "estimated_rank": rank,
        "estimated_memory_bytes": answer.memory_bytes,
    }


def replay_scores(
    study_id: str,
    asked: ObjectiveOptions,
    metrics_file: Path | None,
    store: Path | None,
    *,
    as_json: bool,
) -> bool:
    """Score a study again and print what changes; return whether nothing does."""
    with open_store(store) as records:
        row = records.find(study_id)
        leader = leader_of(row, records)
        won = None if leader is None else leader.ordinal
        today = score_again(row, records, asked.of(row.study), metrics_file)
        flag = store_flag(records.root)
    if as_json:
        typer.echo(json.dumps(_scores_facts(row.id, won, today)))
        return today.same
    question = objective_words(today.now.row.study)
    typer.echo(f"study {row.id}: scored by {question}; nothing was launched or stored")
    for each in today.trials:
        typer.echo(_score_line(each))
    won_words = "no trial" if won is None else f"trial {won}"
    typer.echo(f"leader of the search: {won_words}, by {objective_words(row.study)}")
    typer.echo(f"leader by the recorded values: {_leader_words(today.then)}")
    typer.echo(f"leader by current values: {_leader_words(today.now)}")
    if today.newer:
        newer = (f"{name} {new} (recorded {old})" for name, (old, new) in today.newer.items())
        typer.echo(f"newer versions: {', '.join(newer)}")
        typer.echo(f"next: cclsearch metrics compute --study {row.id}{flag}")
    typer.echo(_verdict(today))
    return today.same


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


def _scores_facts(study_id: str, won: int | None, today: Rescore) -> dict[str, object]:
    """Return the scores for JSON; absent values are null."""
    return {
        "study_id": study_id,
        "mode": "score",
        "same": today.same,
        "objective": today.now.row.study.objective.expression,
        "led": won,
        "leads_on_record": today.then.finding.winner,
        "leads_today": today.now.finding.winner,
        "newer_versions": {name: list(pair) for name, pair in today.newer.items()},
        "trials": [
            {
                "ordinal": each.trial.ordinal,
                "then": None if each.then is None else each.then.value,
                "now": None if each.now is None else each.now.value,
                "unit": "" if each.now is None else each.now.unit,
                "same": each.is_same,
                "changed": [[pair and asdict(pair) for pair in pairs] for pairs in each.changed],
                "unread": each.unread,
            }
            for each in today.trials
        ],
    }


def replay_search(study_id: str, store: Path | None, *, as_json: bool) -> bool:
    """Replay a search and print it; return whether everything is as recorded."""
    with open_store(store) as records:
        row = records.find(study_id)
        require_search(row)
        record = recorded_study(row.id, records)
        replay = replay_study(record, records)
        checks = compare_replay(record, replay.again)
        same = checks.first is None and replay.stopped is None
        if as_json:
            typer.echo(json.dumps(_search_facts(record, checks, replay.stopped, same=same)))
            return same
        typer.echo(f"study {row.id}: {row.study.name}, strategy {row.strategy}")
        for trial in checks.trials:
            typer.echo(_trial_line(trial))
        if record.finding is not None:
            typer.echo(f"finding  {_result(checks.finding)}")
        typer.echo(_search_verdict(record, checks, replay.stopped))
        if same and record.finding is None and status(row, records) != "running":
            typer.echo(f"next: cclsearch resume {row.id}{store_flag(records.root)}")
    return same


def _trial_line(trial: TrialCheck) -> str:
    config = str(trial.config) if trial.config is not None else "(no configuration)"
    return f"trial {trial.ordinal}  {trial.author}  {config}  {_result(trial.differs)}"


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


def _search_facts(
    record: Recorded, checks: Checks, stopped: str | None, *, same: bool
) -> dict[str, object]:
    """Return the replay for JSON; absent values are null."""
    return {
        "study_id": record.row.id,
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
                "differs": list(trial.differs),
            }
            for trial in checks.trials
        ],
        "further_launches": len(record.repeats),
        "finding_differs": list(checks.finding),
    }


def print_decisions(
    study_id: str,
    study: Study,
    source: Source,
    decisions: Sequence[Decision],
    records: Store,
    command: str,
    *,
    as_json: bool,
) -> None:
    """Print every claim with its verdict, and what follows; `command` launches more."""
    holds = all_hold(decision.holds for decision in decisions)
    launches = [*(d.again for d in decisions), *(r.outcome for r in records.repeats(study_id))]
    differs = _differences(decisions, records)
    if as_json:
        facts = {
            "event": "finished",
            "study_id": study_id,
            "mode": "measure",
            "replay_of": source.row.id,
            "holds": holds.value,
            "trials": [_decision_facts(decision) for decision in decisions],
            "machine_differs": list(differs),
            "launches": len(launches),
        }
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    print_lines(
        (
            *(line for decision in decisions for line in _lines(decision)),
            *(("machine differs", words) for words in differs),
            *_disturbed(launches),
            ("replay", _overall(decisions, holds)),
            ("record", f"study {study_id} in {records.root}, of study {source.row.id}"),
            *(("next", each) for each in _next(study_id, source, decisions, records)),
            *_more_rounds(study, decisions, command),
        )
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
    told = [f"trial {d.trial.ordinal} {d.holds}" for d in open_]
    return ", ".join([f"{holds}: {count} of {len(decisions)} trials confirmed", *told])


def _differences(decisions: Sequence[Decision], records: Store) -> tuple[str, ...]:
    """Return how this machine differs from the recorded one, as far as both are known."""
    for decision in decisions:
        then = _machine(decision.trial.outcome, records)
        here = _machine(decision.again, records)
        if then is not None and here is not None:
            return differences(then, here)
    return ()


def _machine(outcome: Outcome, records: Store) -> Machine | None:
    """Return the machine of a launch; None if it is not recorded or not readable."""
    if outcome.launched is None or outcome.launched.machine is None:
        return None
    try:
        return records.machine(outcome.launched.machine)
    except StoreError:
        return None


def _disturbed(launches: Sequence[Outcome]) -> Iterator[Line]:
    found = disturbed_among(launches)
    if found is not None:
        yield "disturbed", disturbed_words(found)


def _next(
    study_id: str, source: Source, decisions: Sequence[Decision], records: Store
) -> Iterator[str]:
    flag = store_flag(records.root)
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


def _more_rounds(study: Study, decisions: Sequence[Decision], command: str) -> Iterator[Line]:
    if any(decision.holds is Holds.UNDECIDED for decision in decisions):
        yield "next", f"{command} --rounds {2 * study.measure.max_confirm_rounds}"


def _decision_facts(decision: Decision) -> dict[str, object]:
    trial = decision.trial
    return {
        "ordinal": trial.ordinal,
        "config": None if trial.config is None else dict(trial.config.values),
        "holds": decision.holds.value,
        "claims": [_claim_facts(claim) for claim in decision.claims],
        "launches": decision.launch_count,
    }


def _claim_facts(claim: Claim) -> dict[str, object]:
    return {**asdict(claim), "holds": claim.holds.value}


def repeat_launches(
    study_id: str, asked: MeasureOptions, store: Path | None, *, as_json: bool
) -> bool:
    """Launch trials again and print what holds; return whether everything was confirmed.

    A study that is an unfinished replay is resumed.
    """
    with open_store(store) as records:
        row = records.find(study_id)
        if asked.trusted:
            trust(row.study, records)
        require_trust(row.study, records)
        if row.strategy == MEASURE:
            decisions = _resumed(row, asked, records, as_json=as_json)
        else:
            decisions = _started(row, asked, records, as_json=as_json)
    return all_hold(decision.holds for decision in decisions) is Holds.CONFIRMED


def _started(
    row: StudyRow, asked: MeasureOptions, records: Store, *, as_json: bool
) -> tuple[Decision, ...]:
    source = source_of(row, records)
    trials = source.chosen(asked.trial or "best")
    study = measuring_study(row.study, row.id, len(trials), asked.rounds)
    check_environment(prepare(study))
    study_id = new_study_id()
    records.create(study_id, study, installed_version())
    begin(study_id, trials, records)
    return _measured(study_id, study, source, asked, records, as_json=as_json)


def _resumed(
    row: StudyRow, asked: MeasureOptions, records: Store, *, as_json: bool
) -> tuple[Decision, ...]:
    """Resume a replay, with more rounds if requested."""
    if asked.trial is not None:
        raise StudyError(
            f"study {row.id} is a replay with its own trials; leave out --trial to resume it, "
            f"or replay {row.study.replay_of}"
        )
    source = source_of(records.find(row.study.replay_of or ""), records)
    study = row.study
    if asked.rounds is not None:
        again = measuring_study(source.row.study, source.row.id, study.budget.trials, asked.rounds)
        study = replace(study, measure=again.measure, budget=again.budget)
        records.replace_study(row.id, study)
    check_environment(prepare(study))
    return _measured(row.id, study, source, asked, records, as_json=as_json)


def _measured(
    study_id: str,
    study: Study,
    source: Source,
    asked: MeasureOptions,
    records: Store,
    *,
    as_json: bool,
) -> tuple[Decision, ...]:
    words = "" if asked.within == WITHIN else f" --within {100 * asked.within:g}%"
    command = f"cclsearch replay {study_id} --mode measure{words}{store_flag(records.root)}"
    prepared = prepare(study)
    with (
        face(as_json, records.history(study_id)) as observer,
        Stop(command) as stop,
        local_backend(
            prepared, records, _first(prepared, source), source.history.trials[0].policy
        ) as backend,
    ):
        replay = measuring(
            study_id, prepared, source, records, backend, observer, within=asked.within
        )

        def work() -> tuple[Decision, ...]:
            what = f"repeated launches of study {source.row.id}"
            observer.study_started(study_id, study, what)
            return replay.run()

        decisions = stop.run(work)
    print_decisions(study_id, study, source, decisions, records, command, as_json=as_json)
    return decisions


def _first(prepared: PreparedStudy, source: Source) -> Config:
    """Return a configuration that the launchers can be made ready for."""
    known = (trial.config for trial in source.history if trial.config is not None)
    config = next(known, None) or prepared.space.feasible[0]
    return next(parts(prepared.study, config)).config
