"""`doctor`, `gc` and `version`: checks of this machine, and maintenance of the store."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from evaluator.doctor import CheckResult, State, python_with_torch
from records.errors import StoreError, StudyError
from records.store.artifacts import StoredFile
from records.store.writer import RebuiltStudy, rebuild
from records.study import Study
from search import settings
from search.cli.options import (
    JsonOption,
    PythonOption,
    StoreOption,
    StudyOptions,
    examples,
    option,
    print_result,
    store_flag,
    takes_options,
)
from search.settings import installed_version, open_store, store_root
from search.storage import Fault, Plan, Rules, collect, plan_removal, verify_files
from search.views.console import Terminal, on_terminal, progress_bar
from search.views.format import format_count, format_decimal_bytes

app = typer.Typer(rich_markup_mode=None)

CANNOT_RUN = 4
ClusterFileOption = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", metavar="FILE", help="Study file (TOML) with the table [cluster]."
    ),
]


@app.command(
    epilog=examples(
        "cclsearch doctor",
        "cclsearch doctor --noise --json",
        "cclsearch doctor --launcher slurm -c study.toml",
    )
)
@takes_options
def doctor(
    noise: bool = option(False, "Measure noise for a minute."),
    launcher: str | None = option(
        None,
        "Only check this launcher: its scheduler, its nodes, and a launch over all of them. "
        "[default: the study file's]",
        metavar="NAME",
    ),
    config: ClusterFileOption = None,
    python: PythonOption = None,
    rebuild: bool = option(
        False, "Only rebuild the store's database from its journals; the old one is kept."
    ),
    verify: bool = option(False, "Only verify the digest of every file in the store."),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check what this machine can run, and what is missing."""
    if rebuild:
        print_rebuild(store, as_json=as_json)
        return
    if verify:
        print_verified(store, as_json=as_json)
        return
    # Imported here: it takes a second to load.
    from search.doctor import findings, launcher_findings

    root = settings.store_root(store)
    checks = findings(root, long_noise=noise, python=python)
    if launcher is not None or config is not None:
        checks = launcher_findings(_cluster_study(config, launcher), root)
    found: list[CheckResult] = []
    for finding in checks:
        found.append(finding)
        if not as_json:
            _print(finding)
    lacking = [x.subject for x in found if x.needed and x.state is State.MISSING]
    if as_json:
        facts = [asdict(finding) for finding in found]
        typer.echo(json.dumps({"can_run": not lacking, "findings": facts}))
    elif lacking:
        typer.echo(f"a search cannot run here: {', '.join(lacking)}")
    else:
        typer.echo(f"next: {_next_command(found, python, store_flag(root.absolute()))}")
    if lacking:
        raise typer.Exit(CANNOT_RUN)


def _next_command(found: Sequence[CheckResult], python: str | None, flags: str) -> str:
    """Return the first search that can run here; without torch it is that of a script."""
    if any(each.subject == "torch" and each.state is State.MISSING for each in found):
        python = python_with_torch()
        if python is None:
            return "cclsearch init train.py"
    named = "" if python is None else f" --python {shlex.quote(python)}"
    return f"cclsearch run --objective step_time{named}{flags}"


@app.command(epilog=examples("cclsearch launchers", "cclsearch launchers -c study.toml --json"))
@takes_options
def launchers(config: ClusterFileOption = None, as_json: JsonOption = False) -> None:
    """List the launchers, and what is missing to use them."""
    from search.doctor import launchers as launcher_results

    found = [*launcher_results(_cluster_study(config, None))]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found]))
        return
    for finding in found:
        _print(finding)
    typer.echo("next: cclsearch doctor --launcher NAME")


def _cluster_study(config: Path | None, launcher: str | None) -> Study:
    """Return the study of a file, by default the built-in one, with another launcher."""
    study = StudyOptions(config=config).study()
    launch = study.launch if launcher is None else replace(study.launch, launcher=launcher)
    return replace(study, launch=launch)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(installed_version())


def _print(finding: CheckResult) -> None:
    from search.views.terminal import echo_wrapped

    echo_wrapped(f"{finding.state:<8}{finding.subject:<13} {finding.detail}", indent=22)
    if finding.remedy is not None:
        echo_wrapped(f"{'':<22}{finding.remedy}", indent=22)


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(h|d|w)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_HOURS = {"h": 1, "d": 24, "w": 168}
_MOST_HOURS = 24 * 365 * 1000


@app.command(
    epilog=examples(
        "cclsearch gc --dry-run",
        "cclsearch gc --traces-older-than 30d --keep-best 3",
        "cclsearch gc --max-size 10GB --yes",
    )
)
@takes_options
def gc(
    traces_older_than: str | None = option(
        None, "Remove traces of trials that ended longer ago, as 30d.", metavar="TIME"
    ),
    keep_best: int | None = option(
        None,
        "Keep the traces of the best N trials of each study; alone: remove all others.",
        metavar="N",
        min=0,
    ),
    max_size: str | None = option(
        None,
        "Remove the oldest traces until the files fit into this size, as 10GB.",
        metavar="SIZE",
    ),
    dry_run: bool = option(False, "Only report what would be removed."),
    yes: bool = option(False, "Remove traces without confirmation.", "--yes", "-y"),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove unused files and, on request, old traces.

    Unused are files that no record refers to, and leftovers of killed processes. Files of trials
    are kept. Only traces that an option selects are removed; the store records
    when and why.
    """
    parts = [] if traces_older_than is None else [f"traces older than {traces_older_than}"]
    parts += [] if max_size is None else [f"the oldest traces beyond {max_size}"]
    words = ", ".join(parts) or "all traces"
    if keep_best:
        best = f"the best {keep_best} trials" if keep_best > 1 else "the best"
        words = f"{', '.join(parts)}{', ' if parts else 'traces '}of all but {best}"
    rules = Rules(
        older_than=None if traces_older_than is None else _duration(traces_older_than),
        keep_best=keep_best,
        max_bytes=None if max_size is None else _bytes(max_size),
        words=words,
    )
    free_space(rules, store, dry_run=dry_run, yes=yes, as_json=as_json)


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text.strip())
    hours = float(found[1]) * _HOURS[found[2]] if found else None
    if hours is None or hours > _MOST_HOURS:
        raise StudyError(
            f"--traces-older-than {text!r} is not a duration; write it as 12h, 30d or 8w"
        )
    return timedelta(hours=hours)


def _bytes(text: str) -> int:
    # Imported here to keep help fast.
    from evaluator.objective import UNITS

    found = _SIZE.fullmatch(text.strip())
    kind, unit = UNITS.get(found[2], ("", 0.0)) if found else ("", 0.0)
    if found is None or kind != "size":
        raise StudyError(f"--max-size {text!r} is not a size; write it as 500MB, 10GB or 2TiB")
    return int(float(found[1]) * unit)


def free_space(
    rules: Rules, store: Path | None, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Remove files, or only report them; ask before traces of trials are removed."""
    console = Terminal(stderr=True)
    with open_store(store) as records:
        with console.status("scanning the store"):
            plan = plan_removal(records, rules)
        if plan.traces and not (dry_run or yes) and (as_json or not on_terminal()):
            raise StudyError(
                f"{_trace_words(plan)} would be removed permanently; list them with --dry-run, "
                f"or add --yes"
            )
        if not as_json:
            _print_plan(plan)
        asked = bool(plan.traces) and not (dry_run or yes)
        if asked and not typer.confirm("Remove these traces permanently?"):
            typer.echo("nothing was removed")
            return
        with console.status("removing"):
            count, freed_bytes = (0, 0) if dry_run else collect(records, plan)
        if as_json:
            typer.echo(json.dumps(_facts(plan, count, freed_bytes)))
            return
        flag = store_flag(records.root)
    if dry_run:
        traces = [trace.kept for trace in plan.traces]
        would = _disk([*plan.orphans, *(kept for kept, _ in plan.unfinished), *traces])
        typer.echo(f"{would} would be freed of {format_decimal_bytes(plan.disk_bytes)}")
    else:
        freed = format_decimal_bytes(freed_bytes)
        typer.echo(f"{format_count(count, 'file')} removed, {freed} freed")
        typer.echo(f"next: cclsearch doctor --verify{flag}")


def _print_plan(plan: Plan) -> None:
    for line in _trace_lines(plan):
        typer.echo(line)
    unfinished = [kept for kept, _ in plan.unfinished]
    for files, what in (
        (plan.orphans, "that no record refers to"),
        (unfinished, "already recorded as removed"),
    ):
        if files:
            typer.echo(f"{format_count(len(files), 'file')} {what}: {_disk(files)}")
    if plan.traces:
        typer.echo(f"{_trace_words(plan)}: {_disk(trace.kept for trace in plan.traces)}")
    if plan.young:
        typer.echo(
            f"{format_count(len(plan.young), 'file')} of the last day, {_disk(plan.young)}, that "
            f"no record refers to yet, are kept: a running trial may use them"
        )


def _trace_lines(plan: Plan) -> Iterator[str]:
    """Yield a line for each trial whose traces are removed."""
    cited = sorted(
        (each.study_id, each.ordinal, each.ended_at or "", trace.kept.disk_bytes)
        for trace in plan.traces
        for each in trace.cited
    )
    for (study_id, ordinal, ended_at), found in groupby(cited, key=lambda each: each[:3]):
        sizes = [disk_bytes for *_, disk_bytes in found]
        yield (
            f"study {study_id}, trial {ordinal} of {ended_at[:10]}: "
            f"{format_count(len(sizes), 'trace')}, {format_decimal_bytes(sum(sizes))}"
        )


def _trace_words(plan: Plan) -> str:
    trials = {(each.study_id, each.ordinal) for trace in plan.traces for each in trace.cited}
    return f"{format_count(len(plan.traces), 'trace')} of {format_count(len(trials), 'trial')}"


def _disk(files: Iterable[StoredFile]) -> str:
    return format_decimal_bytes(sum(kept.disk_bytes for kept in files))


def _facts(plan: Plan, count: int, freed_bytes: int) -> dict[str, object]:
    """Return the result for JSON."""
    return {
        "disk_bytes": plan.disk_bytes,
        "removed": count,
        "freed_bytes": freed_bytes,
        "rule": plan.rules.words if plan.rules.is_any else None,
        "uncited": [str(kept.path) for kept in plan.orphans],
        "uncited_of_the_last_day": [str(kept.path) for kept in plan.young],
        "removed_before": [str(kept.path) for kept, _ in plan.unfinished],
        "traces": [
            {
                "study_id": each.study_id,
                "trial": each.ordinal,
                "name": each.name,
                "digest": each.digest,
                "disk_bytes": trace.kept.disk_bytes,
                "ended_at": each.ended_at,
            }
            for trace in plan.traces
            for each in trace.cited
        ],
    }


def print_rebuild(store: Path | None, *, as_json: bool) -> None:
    """Rebuild the database and print a line for each study."""
    root = store_root(store).absolute()
    rebuilt = rebuild(root, (lambda _study: None) if as_json else _print_study)
    kept = None if rebuilt.kept is None else str(rebuilt.kept)
    trials = sum(study.trials for study in rebuilt.studies)
    lines = (
        *([] if kept is None else [f"kept: the old database is {kept}"]),
        *(
            f"not rebuilt: study {study_id} has no journal; only the old database has it"
            for study_id in rebuilt.without_journal
        ),
        f"rebuilt: {len(rebuilt.studies)} studies, {trials} trials in {root}",
        f"next: cclsearch list{store_flag(root)}",
    )
    print_result({**asdict(rebuilt), "kept": kept}, lines, as_json=as_json)


def _print_study(study: RebuiltStudy) -> None:
    typer.echo(f"study {study.study_id}: {study.entries} entries, {study.trials} trials")
    for why in study.unread:
        typer.echo(f"  not read: {why}")


def print_verified(store: Path | None, *, as_json: bool) -> None:
    """Print changed and missing files; raise `StoreError` if there are any."""
    with open_store(store) as records, progress_bar() as on_file:
        found = verify_files(records, on_file)
        root = records.root
    read = f"{found.file_count} files read, {format_decimal_bytes(found.disk_bytes)} on disk"
    removed = f"{found.removed_count} were removed by gc, as recorded"
    lines = (read, *([removed] if found.removed_count else []), *map(_fault_words, found.faults))
    print_result(asdict(found), lines, as_json=as_json)
    if found.faults:
        raise StoreError(
            f"{len(found.faults)} files of {root} are changed or missing; restore them from a "
            f"backup of the store. The rest of their trials is intact"
        )
    if not as_json:
        typer.echo("all files match their digests")


def _fault_words(fault: Fault) -> str:
    """Return what is wrong with a file, and which trials it belongs to."""
    cited = (f"study {study}, trial {ordinal}, {name}" for study, ordinal, name in fault.cited_by)
    return f"{'; '.join(cited) or 'a file that no record refers to'}: {fault.what}"
