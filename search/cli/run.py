"""`run` and `resume`: start or continue a search, with progress, interruption and a final report.

The service starts this module as a process: `python -P -m search.cli.run STORE STUDY`.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, NoReturn, Self, TypeVar

import typer

from records.codec import to_json
from records.errors import CclsearchError, StoreBusy, StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import MEASURE, Study
from records.trial import History
from search.cli.options import (
    JsonOption,
    SearchObjectives,
    StoreOption,
    StudyArgument,
    StudyOptions,
    TrustOption,
    examples,
    option,
    store_flag,
    takes_options,
)
from search.loop.budget import extend_budget, with_price
from search.loop.leader import study_leader
from search.loop.ports import Observer, scrubbed_study
from search.loop.running import running_launches
from search.loop.study_result import StudyResult
from search.report.data import StudyRecord, print_report
from search.service.runner import LOCK, REFUSAL, run_folder
from search.settings import (
    Interrupted,
    has_records,
    installed_version,
    open_store,
    scheduler_job,
    scrubber,
    store_root,
    was_requeued,
)
from search.transfer.trust import require_trust
from search.views.console import Terminal, on_terminal
from search.views.terminal import JsonProgress, LiveProgress, PlainProgress

app = typer.Typer(rich_markup_mode=None)

NOTHING_MEASURED = 3
NEWEST_STUDIES = 100
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Name of the LLM, as its provider spells it. [default: the study's]",
    ),
]


NodeHoursOption = Annotated[
    float | None,
    typer.Option(
        "--max-node-hours",
        metavar="HOURS",
        min=0.001,
        help="Nodes times hours that they are held, in all runs of the study; trials end while the "
        "final still has time. [default: the study's]",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How a new search proceeds, and when it stops; None is as the study has it."""

    strategy: str | None = option(
        None,
        "hybrid, llm, offline, ranked, coordinate, tpe, random, grid, replay, or auto: "
        "hybrid if ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN is set, else offline. "
        "[default: auto]",
        metavar="NAME",
    )
    trials: int | None = option(
        None,
        "Most trials, not counting repeated launches; a search with nothing left to gain ends "
        "earlier. [default: the study's, else 40]",
        metavar="N",
        min=1,
    )
    patience: int | None = option(
        None,
        "Stop after N measured trials in a row without improvement. [default: the study's; "
        "when nothing is left to gain]",
        metavar="N",
        min=1,
    )
    max_wall: float | None = option(
        None,
        "Time for the whole search: trials end while the final still has time. [default: no limit]",
        metavar="SECONDS",
        min=1,
    )
    max_node_hours: NodeHoursOption = None
    model: ModelOption = None
    max_tokens: int | None = option(
        None,
        "LLM token limit, input plus output; then the search continues without the LLM. "
        "[default: no limit]",
        metavar="N",
        min=0,
    )
    max_cost: float | None = option(
        None,
        "LLM cost limit; then the search continues without the LLM. [default: no limit]",
        metavar="USD",
        min=0,
    )
    parallel: int | None = option(
        None,
        "Trials to run in parallel where the machine has room: each gets separate GPUs "
        "or cores. [default: the study's; built-in 1]",
        metavar="N",
        min=1,
    )
    isolate: bool | None = option(
        None,
        "Give jobs a higher priority than other work on this machine; needs root or a nice limit "
        "that allows it. [default: the study's]",
        "--isolate/--no-isolate",
    )
    no_transfer: bool = option(
        False, "Do not begin with the best of earlier studies of like work on this machine."
    )
    seed_policy: str | None = option(
        None, "Built-in seed or policy file to start from. [default: sharded]", metavar="NAME|FILE"
    )

    def of(self, study: Study) -> Study:
        """Return the study with these options applied."""
        budget, tokens, cost = study.budget, self.max_tokens, self.max_cost
        return replace(
            _with_model(study, self.model),
            budget=replace(
                budget,
                trials=self.trials or budget.trials,
                patience=self.patience or budget.patience,
                max_wall_s=self.max_wall or budget.max_wall_s,
                max_node_hours=self.max_node_hours or budget.max_node_hours,
                max_tokens=budget.max_tokens if tokens is None else tokens,
                max_cost_usd=budget.max_cost_usd if cost is None else cost,
            ),
            seed_policy=study.seed_policy if self.seed_policy is None else self.seed_policy,
            launch=study.launch
            if self.isolate is None
            else replace(study.launch, isolate=self.isolate),
            parallel=self.parallel or study.parallel,
        )


@app.command(
    epilog=examples(
        "cclsearch run --objective step_time --trials 20",
        "cclsearch run --objective tokens_per_s -c study.toml",
        'cclsearch run --objective "0.5*rank_count/4 + 0.5*step_time/0.3"',
        "cclsearch run --objective step_time --objective gpus --limit 'peak_memory < 30 GiB'",
    )
)
@takes_options
def run(
    *,
    objectives: SearchObjectives,
    options: StudyOptions,
    search: SearchOptions,
    replay_of: str | None = option(
        None,
        "Strategy replay: launch every policy of this study again, in order, as a new "
        "study. Other options override its settings.",
        "--from",
        metavar="STUDY",
    ),
    wait_for_quiet: float | None = option(
        None,
        "Before the first launch, wait until other work leaves the machine, at most S seconds. "
        "[default: do not wait]",
        metavar="S",
        min=1,
    ),
    trust: TrustOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search for the best configuration of a workload.

    Launches trials, learns from each and confirms the best. Without a study file it trains a small
    decoder on this machine, on GPUs if there are any. The
    best trials and the seed are launched again, interleaved, before the best is announced.
    """
    # Imported here, as in other commands, to keep help fast.
    from search.study.prior import with_prior
    from search.study.spaces import completed

    base, strategy = None, search.strategy
    if replay_of is not None:
        base = repeated_study(replay_of, strategy, store, trusted=trust)
    # Whether all ranks must be used depends on the objectives.
    study = search.of(completed(objectives.of(options.study(base))))
    if base is not None:  # a study file cannot change what is replayed
        study, strategy = replace(study, replay_of=base.replay_of), base.strategy
    earlier = _study_before_requeue(study, store)
    if earlier is None and base is None:
        study = with_prior(study, lambda note: typer.echo(note, err=True))
        if not search.no_transfer:
            study = _with_earlier(study, store)
    if earlier is None and wait_for_quiet is not None:
        _wait(wait_for_quiet)
    if earlier is not None:
        _end(resume_study(earlier, None, store, trusted=trust, as_json=as_json))
    else:
        _end(begin(study, strategy or study.strategy, store, as_json=as_json))


@app.command(
    epilog=examples("cclsearch resume", "cclsearch resume 20260131-120000-ab12 --trials 5")
)
@takes_options
def resume(
    study_id: StudyArgument = "",
    trials: int | None = option(None, "Trials to add.", metavar="N", min=1),
    max_node_hours: NodeHoursOption = None,
    model: ModelOption = None,
    trust: TrustOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume a study, or add launches to it.

    Finished trials are kept and not repeated.
    """
    finding = resume_study(
        study_id,
        trials,
        store,
        model=model,
        max_node_hours=max_node_hours,
        trusted=trust,
        as_json=as_json,
    )
    _end(finding)


@app.command(epilog=examples("cclsearch race 20260131-120000-ab12 3 7"))
@takes_options
def race(
    study_id: Annotated[str, typer.Argument(metavar="STUDY", help="Study id or a prefix of it.")],
    a: Annotated[int, typer.Argument(metavar="A", help="A measured trial of the study.", min=0)],
    b: Annotated[int, typer.Argument(metavar="B", help="Another one.", min=0)],
    trust: TrustOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Race two trials of a study: launch both again, interleaved.

    The race ends once one is shown to be better. Both become trials 0 and 1 of a new study; the
    recorded one does not change.
    """
    from search.compose import new_study_id
    from search.strategies.proposers import race_study, record_race

    with open_store(store) as records:
        row = records.find(study_id)
        _require_launchable(row, records, trusted=trust)
        study = race_study(row, (a, b), records)
        new_id = new_study_id()
        record_race(new_id, study, (a, b), installed_version(), "interrupted", records)
    finding = resume_study(new_id, None, store, as_json=as_json)
    if not as_json:
        flag = store_flag(store_root(store))
        typer.echo(f"next: cclsearch compare trial:{new_id}:0 trial:{new_id}:1{flag}")
    _end(finding)


def _with_earlier(study: Study, store: Path | None) -> Study:
    """Return the study with the best of earlier ones, which are named."""
    from search.strategies.earlier import with_earlier

    if not has_records(store):
        return study
    with open_store(store) as records:
        study = with_earlier(study, records)
    if study.earlier:
        named = ", ".join(best.study for best in study.earlier)
        words = f"first candidates are the best of {named}, of like work (--no-transfer: none)"
        typer.echo(words, err=True)
    return study


def _wait(most_s: float) -> None:
    """Wait for a quiet machine, and report what still disturbs it afterwards."""
    from evaluator.machine import wait_for_quiet

    typer.echo(f"waiting up to {most_s:g} s until other work leaves the machine", err=True)
    disturbance = wait_for_quiet(most_s)
    if disturbance is not None:
        typer.echo(f"the machine is still busy, starting anyway: {disturbance}", err=True)


def _study_before_requeue(study: Study, store: Path | None) -> str | None:
    """Return the study that this job of a scheduler searched before it was requeued, if any."""
    job_id = scheduler_job()
    if not was_requeued() or job_id is None or not has_records(store):
        return None
    with open_store(store) as records:
        for row in records.studies(NEWEST_STUDIES):
            runs = records.runs(row.id)
            if runs and runs[-1].job_id == job_id and _asks(row.study) == _asks(study):
                words = f"{job_id} was requeued: the search of study {row.id} goes on"
                typer.echo(words, err=True)
                return row.id
    return None


def _asks(study: Study) -> tuple[object, ...]:
    """Return what tells studies of one job apart."""
    return study.name, study.objective, study.more_objectives, study.limits, study.space


def _end(finding: StudyResult) -> None:
    if finding.winner is None:
        raise typer.Exit(NOTHING_MEASURED)


def _with_model(study: Study, model: str | None) -> Study:
    """Return the study with another LLM; the price of the old one is dropped."""
    if model is None or model == study.llm.model:
        return study
    if not model.strip() or not model.isprintable():
        raise StudyError("--model is empty; give the name that the provider uses")
    return replace(study, llm=replace(study.llm, model=model, price=None))


INTERRUPTED_TWICE = 130
Found = TypeVar("Found")


def begin(study: Study, strategy: str, store: Path | None, *, as_json: bool) -> StudyResult:
    """Record a new study and run its search."""
    from search.compose import new_study_id, resolve_strategy

    chosen, why = resolve_strategy(strategy)
    # The price is recorded too, as published prices change.
    study = replace(study, strategy=chosen, llm=with_price(study.llm))
    study = scrubbed_study(study, scrubber())
    study_id = new_study_id()
    with closing(Store(store_root(store))) as records:
        finding = _searched(study_id, study, records, why, None, as_json=as_json)
        _report(finding, study_id, records, as_json)
    return finding


def resume_study(
    study_id: str,
    more: int | None,
    store: Path | None,
    *,
    model: str | None = None,
    max_node_hours: float | None = None,
    trusted: bool = False,
    as_json: bool,
) -> StudyResult:
    """Resume a recorded study; add `more` trials, switch to `model`, change the limit if given.

    An imported study has to be `trusted` once.
    """
    with open_store(store) as records:
        row = records.find(study_id)
        if row.strategy == MEASURE:
            raise StudyError(
                f"study {row.id} is a replay, not a search; resume it with `cclsearch replay "
                f"{row.id} --mode measure`"
            )
        _require_launchable(row, records, trusted=trusted)
        before = _launch_counts(row.id, records)
        study = row.study if more is None else extend_budget(row.id, more, records)
        if model is not None or max_node_hours is not None:
            study = _with_model(study, model)
            hours = max_node_hours or study.budget.max_node_hours
            budget = replace(study.budget, max_node_hours=hours)
            study = replace(study, llm=with_price(study.llm), budget=budget)
            with records.lock(row.id):
                records.replace_study(row.id, study)
        words = f"strategy {study.strategy}"
        words += f"; resumed after {before[0]} trials" if any(before) else ""
        history = study_leader(row, records).history
        finding = _searched(row.id, study, records, words, history, as_json=as_json)
        if _launch_counts(row.id, records) == before:
            typer.echo(f"nothing left to launch: {finding.stop_reason}", err=True)
        _report(finding, row.id, records, as_json)
    return finding


def _require_launchable(row: StudyRow, records: Store, *, trusted: bool) -> None:
    """Raise `StudyError` for an imported study without commands, or without trust."""
    origin = row.study.origin
    if origin is not None and row.study.searched_elsewhere:
        raise StudyError(
            f"study {row.id} was imported from {origin.source} and cannot be resumed: there is "
            f"no command to launch its trials; see `cclsearch show {row.id}`"
        )
    require_trust(row.study, records, trusted=trusted)


def repeated_study(
    study_id: str, strategy: str | None, store: Path | None, *, trusted: bool
) -> Study:
    """Return a new study that launches the policies of a recorded one."""
    from search.strategies.proposers import ReplayProposer, study_again

    if strategy not in {None, ReplayProposer.name}:
        raise StudyError(
            f"--from replays a recorded study, but strategy {strategy!r} proposes new trials; "
            "leave one out"
        )
    with open_store(store) as records:
        row = records.find(study_id)
        _require_launchable(row, records, trusted=trusted)
        return study_again(row, records)


def _launch_counts(study_id: str, records: Store) -> tuple[int, int]:
    return len(records.history(study_id)), len(records.repeats(study_id))


@contextmanager
def face(as_json: bool, history: History, study_id: str, records: Store) -> Iterator[Observer]:
    """Yield the progress output: JSON on request, a live view on a terminal, else lines."""
    if as_json:
        yield JsonProgress(sys.stdout)
    elif on_terminal():
        running = partial(running_launches, records.workdir(study_id), scrubber().text)
        with LiveProgress(Terminal(), history, records.repeats(study_id), running) as live:
            yield live
    else:
        yield PlainProgress(sys.stdout)


def _searched(
    study_id: str,
    study: Study,
    records: Store,
    strategy: str,
    history: History | None,
    *,
    as_json: bool,
) -> StudyResult:
    """Run a search, which is recorded as a new study unless it has a history."""
    from search.compose import open_search
    from search.study.spaces import prepare

    flag = store_flag(records.root)
    with (
        face(as_json, history or History(), study_id, records) as observer,
        Stop(*(f"cclsearch {word} {study_id}{flag}" for word in ("show", "resume"))) as stop,
        open_search(study_id, prepare(study), records, observer) as search,
    ):
        if history is None:
            records.create(study_id, study, installed_version())

        def work() -> StudyResult:
            runner = search.trial_runner
            runner.observer.study_started(study_id, runner.study, strategy)
            return search.run()

        return stop.run(work)


def _give_up_closed_output() -> None:
    """Redirect standard output if its reader is gone; the flush at exit would fail."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Stop:
    """Ctrl-C, SIGTERM and SIGHUP end the search cleanly; the second one ends it immediately.

    `commands` show and resume it.
    """

    def __init__(self, *commands: str) -> None:
        self.again = "\n".join(f"next: {command}" for command in commands)
        self._was_asked = False
        self._previous: dict[int, signal.Handlers | int | Callable[..., object] | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(self, work: Callable[[], Found]) -> Found:
        """Run `work`; an interruption or an error says how to resume."""
        try:
            self._listen()
            return work()
        except KeyboardInterrupt:
            _give_up_closed_output()
            what = "interrupted; every finished trial is recorded"
            raise Interrupted(f"{what}\n{self.again}") from None
        except CclsearchError as error:
            raise type(error)(f"{error}\n{self.again}") from error

    def _listen(self) -> None:
        """Handle signals until the context ends, except those that this process ignores."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._ask)

    def _ask(self, _signal: int, _frame: object) -> NoReturn:
        if self._was_asked:
            # No cleaning up: ranks end with their parent, and the store holds what is finished.
            Terminal(stderr=True).show_cursor()
            os.write(sys.stderr.fileno(), f"\n{self.again}\n".encode())
            os._exit(INTERRUPTED_TWICE)
        self._was_asked = True
        raise KeyboardInterrupt


def _report(finding: StudyResult, study_id: str, records: Store, as_json: bool) -> None:
    if as_json:
        event = {"event": "finished", "study_id": study_id, **json.loads(to_json(finding))}
        typer.echo(json.dumps(event, allow_nan=False))
    else:
        print_report(finding, StudyRecord.of(study_id, records), store_flag(records.root))


def main(store: Path, study_id: str) -> None:
    """Resume a study; write the reason to its run folder if that is refused."""
    folder = run_folder(store, study_id)
    (folder / LOCK).write_text(str(os.getpid()), encoding="ascii")
    try:
        resume_study(study_id, None, store, as_json=True)
    except (Interrupted, StoreBusy):
        pass  # the store has the state; if it is busy, another process runs the search
    except (CclsearchError, OSError) as error:
        words = str(error) or type(error).__name__
        (folder / REFUSAL).write_text(words.splitlines()[0], encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
