"""`replay`: repeat the search, decisions, launches or scores of a recorded study."""

import json
from dataclasses import dataclass, replace
from typing import Literal

import typer

from records.errors import StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import MEASURE, Study
from records.trial import Config
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
    option,
    store_flag,
    takes_options,
)
from search.cli.run import Stop, face
from search.compose import check_environment, live_backend, new_study_id
from search.loop.study_result import leader_of, trials_named
from search.replay.measure import (
    Decision,
    Source,
    begin,
    measuring,
    measuring_study,
    require_search,
    source_of,
)
from search.replay.other_machine import as_given, policies_elsewhere
from search.replay.rerun import recorded_study, replay_study
from search.replay.scores import compare_replay, score_again
from search.replay.view import (
    Report,
    decisions_report,
    policies_report,
    scores_report,
    search_report,
)
from search.report.data import print_lines
from search.settings import installed_version, open_store, status
from search.study.spaces import PreparedStudy, parts, prepare, varied_values
from search.transfer.trust import require_trust
from search.views.console import Terminal
from search.views.format import (
    parse_share,
)

app = typer.Typer(rich_markup_mode=None)

OTHERWISE = 7
WITHIN = "10%"
"""A machine changes over months, even if it is the same one."""
MODES = {
    "--trial": ("measure", "policy"),
    "--rounds": ("measure",),
    "--within": ("measure",),
    "--vary": ("policy",),
}
"""Options that only some modes accept, besides --trust and those of a study and of scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Which trials to repeat, and how often or where."""

    trial: str | None = option(
        None,
        "For measure and policy: which trials. [default: best for measure, all for policy]",
        metavar="best|seed|N|all",
    )
    rounds: int | None = option(
        None,
        "For measure: maximum rounds of launches per trial. [default: the study's, at least 12]",
        metavar="N",
        min=2,
    )
    within: str | None = option(
        None,
        "For measure: allowance beyond the recorded interval, as machines change over "
        "time. [default: 10%]",
        metavar="SHARE",
    )
    vary: list[str] = option(
        [],
        "For policy: values of a workload or environment field; several fields are "
        "combined. Repeatable.",
        metavar="FIELD=A,B",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions(ObjectiveOptions):
    """By what to score."""

    metrics_file: MetricsFileOption = None


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
    mode: Literal["llm", "policy", "measure", "score"] = option(
        "llm",
        "What to repeat. llm: the search, with recorded LLM responses and launch "
        "results. policy: the policies' decisions, for another workload or environment. "
        "measure: launches, to check whether the recorded results hold on this machine. "
        "score: metrics and scores, from stored samples and traces.",
    ),
    asked: ReplayOptions,
    options: StudyOptions,
    scores: ScoreOptions,
    strict: bool = option(
        False, f"Exit with status {OTHERWISE} if anything differs or is undecided."
    ),
    trust: TrustOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a recorded study and report where the results differ.

    Only --mode measure launches anything, as a new study; the old one is never changed. With
    --json that mode prints one event per line, the others one document.
    """
    _require_mode(mode, asked, options, scores, trusted=trust)
    with open_store(store) as records:
        row = records.find(study_id)
        match mode:
            case "llm":
                report = replay_search(row, records)
            case "policy":
                report = replay_policies(row, records, asked, options)
            case "score":
                report = replay_scores(row, records, scores)
            case "measure":
                report = repeat_launches(row, records, asked, trusted=trust, as_json=as_json)
        if as_json:
            typer.echo(json.dumps(report.facts, allow_nan=False))
        else:
            for line in report.lines:
                typer.echo(line)
            if report.verdicts:
                print_lines(report.verdicts)
    if strict and not report.same:
        raise typer.Exit(OTHERWISE)


def _require_mode(
    mode: str,
    asked: ReplayOptions,
    options: StudyOptions,
    scores: ScoreOptions,
    *,
    trusted: bool,
) -> None:
    """Raise `StudyError` for an option that is for other modes."""
    flags = [(flag, MODES[flag]) for flag in flags_given(asked)]
    flags += [(flag, ("policy",)) for flag in flags_given(options)]
    flags += [(flag, ("score",)) for flag in flags_given(scores)]
    flags += [("--trust", ("measure",))] if trusted else []
    for flag, modes in flags:
        if mode not in modes:
            raise StudyError(f"{flag} needs --mode {' or '.join(modes)}, not {mode}")


def replay_policies(
    row: StudyRow, records: Store, asked: ReplayOptions, options: StudyOptions
) -> Report:
    """Run the policies of a study in other contexts; the same if all are valid everywhere."""
    which = asked.trial or "all"
    best = leader_of(row, records) if which == "best" else None
    trials = trials_named(which, records.history(row.id), best, row.id)
    study, varied = options.study(as_given(row.study)), varied_values(asked.vary)
    with Terminal(stderr=True).status("running policies") as line:
        found = policies_elsewhere(
            trials, study, varied, lambda count: line.update(f"policies run: {count}")
        )
    return policies_report(row.id, found)


def replay_scores(row: StudyRow, records: Store, asked: ScoreOptions) -> Report:
    """Score a study again; the same if no score and no leader changes."""
    today = score_again(row, records, asked.of(row.study), asked.metrics_file)
    return scores_report(row, leader_of(row, records), today, store_flag(records.root))


def replay_search(row: StudyRow, records: Store) -> Report:
    """Replay a search; the same if every trial and the finding are as recorded."""
    require_search(row)
    record = recorded_study(row.id, records)
    replay = replay_study(record, records)
    resume = None
    if status(row, records) != "running":
        resume = f"cclsearch resume {row.id}{store_flag(records.root)}"
    checks = compare_replay(record, replay.again)
    return search_report(row, record, checks, replay.stopped, resume=resume)


def repeat_launches(
    row: StudyRow, records: Store, asked: ReplayOptions, *, trusted: bool, as_json: bool
) -> Report:
    """Launch trials again with progress output; the same if every claim is confirmed.

    A study that is an unfinished replay is resumed, with more rounds if requested.
    """
    within = parse_share(asked.within or WITHIN, "--within")
    require_trust(row.study, records, trusted=trusted)
    if row.strategy == MEASURE:
        study_id, study, source = _resumed(row, asked, records)
    else:
        study_id, source = new_study_id(), source_of(row, records)
        trials = source.chosen(asked.trial or "best")
        study = measuring_study(row.study, row.id, len(trials), asked.rounds)
        check_environment(prepare(study))
        records.create(study_id, study, installed_version())
        begin(study_id, trials, records)
    words = "" if within == parse_share(WITHIN, "") else f" --within {100 * within:g}%"
    command = f"cclsearch replay {study_id} --mode measure{words}{store_flag(records.root)}"
    prepared, seed = prepare(study), source.history.trials[0].policy
    with (
        face(as_json, records.history(study_id), study_id, records) as observer,
        Stop(command) as stop,
        live_backend(study_id, prepared, records, _first(prepared, source), seed) as backend,
    ):
        again = measuring(study_id, prepared, source, records, backend, observer, within=within)

        def work() -> tuple[Decision, ...]:
            what = f"repeated launches of study {source.row.id}"
            observer.study_started(study_id, study, what)
            return again.run()

        decisions = stop.run(work)
    flag = store_flag(records.root)
    return decisions_report(study_id, study, source, decisions, records, command, flag)


def _resumed(row: StudyRow, asked: ReplayOptions, records: Store) -> tuple[str, Study, Source]:
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
    return row.id, study, source


def _first(prepared: PreparedStudy, source: Source) -> Config:
    """Return a configuration that the launchers can be made ready for."""
    known = (trial.config for trial in source.history if trial.config is not None)
    config = next(known, None) or prepared.space.feasible[0]
    return next(parts(prepared.study, config)).config
