"""Run a collective benchmark from the command line: launch its ranks, print and write results."""

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import typer

from evaluator.collective_bench.record import (
    BenchRecord,
    ResultFiles,
    terminal_header,
    terminal_row,
)
from evaluator.collective_bench.request import BenchContext, BenchPlan, OptionFault, read_plan
from evaluator.collective_bench.run import (
    AdapterChoice,
    BenchRun,
    BrokenLaunch,
    RecordListener,
    choose_adapters,
)
from evaluator.job_python import check_torch
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_gpus, this_machine
from evaluator.rank.job import JobError
from evaluator.rank.protocol import read_rank_numbers
from evaluator.recipes.collectives import absence
from evaluator.timing.bench_csv import ABSENT
from evaluator.workloads.collectives.operations import AdapterName, PointStatus, SweepRequest
from records.codec import to_json
from records.errors import EnvironmentFault
from search.settings import has_rendezvous, started_as_rank_by, trial_environment


class Table:
    """Aligned rows, under a heading for each collective of each launch."""

    def __init__(self) -> None:
        self._last: BenchRecord | None = None

    def add(self, record: BenchRecord) -> None:
        """Print a row, and above it what is new about it."""
        last = self._last
        if last is None or last.place.launch_id != record.place.launch_id:
            self.end_launch()
            typer.echo(launch_words(record))
            last = None
        collective = record.point.operation.collective
        if last is None or last.point.operation.collective != collective:
            typer.echo(f"\n{heading(collective)}\n{terminal_header()}")
        typer.echo(terminal_row(record))
        self._last = record

    def end_launch(self) -> None:
        """Close the table of a launch, with a warning if the machine was busy with other things."""
        if self._last is None:
            return
        typer.echo()
        if self._last.conditions and self._last.conditions.disturbances:
            busy = ", ".join(self._last.conditions.disturbances)
            typer.echo(f"note: while {self._last.params.comm_adapter} ran, {busy}", err=True)


def heading(collective: str) -> str:
    """The line above the rows of a collective."""
    words = "".join(word.capitalize() for word in collective.split("_"))
    return f"=== {words} Performance ==="


def launch_words(record: BenchRecord) -> str:
    """What all rows of a launch have in common and no column shows."""
    found, params = record.facts, record.params
    backend = f"{found.backend_name} {found.backend_version or ''}".rstrip()
    facts = (
        f"{params.comm_adapter} on {backend}",
        f"{params.device} {found.device_name or ABSENT}",
        f"torch {found.torch_version}",
        params.dispatch_mode,
        f"warmup {params.warmup_iterations}",
        f"iters {params.measure_iterations}",
        f"sync interval {params.sync_interval}",
        f"bandwidth by {params.bandwidth_convention}",
        f"round {record.place.round + 1} of {record.place.round_count}",
    )
    return ", ".join(facts)


BAD = (PointStatus.FAILED, PointStatus.TIMEOUT, PointStatus.WRONG_RESULT)


class Output:
    """Prints and writes the records; raises `StudyError` first for files it cannot add to.

    `bad` are the points that went wrong.
    """

    def __init__(self, plan: BenchPlan, choice: AdapterChoice, *, as_json: bool) -> None:
        self.bad: list[BenchRecord] = []
        self._quiet, self._as_json = plan.options.quiet, as_json
        self._table = Table()
        self._files: dict[str, ResultFiles] = {}
        if plan.options.csv:
            for request in choice.requests:
                adapter = request.adapter.value
                files = ResultFiles(
                    _folder(plan, adapter), adapter=adapter, swept=plan.sweeps_reductions
                )
                files.check(plan.file_names)
                self._files[adapter] = files
        if not self._quiet:
            for line in (*choice.left_out, *plan.left_out):
                typer.echo(f"note: {line}", err=True)

    def add(self, record: BenchRecord) -> None:
        """Write a record down, then print it."""
        if record.params.comm_adapter in self._files:
            self._files[record.params.comm_adapter].add(record)
        if record.point.status in BAD:
            self.bad.append(record)
        if self._as_json:
            typer.echo(to_json(record))
        elif not self._quiet:
            self._table.add(record)

    def end(self) -> None:
        """Close the table, and print where files are and what went wrong."""
        self._table.end_launch()
        for record in self.bad:
            typer.echo(f"error: {_wrong(record)}", err=True)
        folders = [str(files.folder) for files in self._files.values()]
        if folders and not self._quiet:
            typer.echo(f"written: {', '.join(folders)}", err=self._as_json)


def _folder(plan: BenchPlan, adapter: str) -> Path:
    """Where an adapter's files go; a folder for each where all are measured."""
    if plan.options.output_dir is None:
        return Path(adapter)
    root = Path(plan.options.output_dir)
    return root / adapter if plan.options.all_adapters else root


def _wrong(record: BenchRecord) -> str:
    point = record.point
    return (
        f"{record.params.comm_adapter}: {point.operation}: "
        f"{point.status.replace('_', ' ')}: {point.reason}"
    )


NO_MPI = "cannot join ranks that torchrun started; start the command with mpirun"
NO_RENDEZVOUS = (
    "cannot join ranks that mpirun started without MASTER_ADDR and MASTER_PORT; set both, or start "
    "the command with torchrun"
)


def bench_context() -> BenchContext:
    """Read it from the environment; raises `EnvironmentFault` if a rank knows only a part."""
    gpu_count, launcher = len(local_gpus()), started_as_rank_by()
    if launcher is None:
        return BenchContext(gpu_count=gpu_count)
    try:
        numbers = read_rank_numbers()
    except JobError as error:
        raise EnvironmentFault(
            f"this looks like a rank of {launcher}, but {error}; start it with torchrun or mpirun, "
            "or unset the variables that name a rank"
        ) from error
    if launcher == "torchrun":
        closed = {AdapterName.MPI: NO_MPI}
    else:
        needs_rendezvous = (AdapterName.TORCHCOMMS, AdapterName.C10D, AdapterName.C10D_TORCHCOMMS)
        closed = {} if has_rendezvous() else dict.fromkeys(needs_rendezvous, NO_RENDEZVOUS)
    return BenchContext(gpu_count=gpu_count, numbers=numbers, closed=closed)


MISUSED, INCOMPLETE = 2, 3
SILENT_RANK_S = 5.0


def bench_collectives(options: Mapping[str, object]) -> int:
    """Measure what was asked for, print it and write it; return the exit code."""
    here = bench_context()
    plan = read_plan(options, here)
    if isinstance(plan, tuple):
        return _misused(plan, here)
    choice = choose_adapters(plan, here.closed, _absences(here, plan.options.python))
    if not here.prints:
        return _ended(_measured(plan, choice.requests, here, lambda _record: None), here)
    output = Output(plan, choice, as_json=bool(options["as_json"]))
    broken = _measured(plan, choice.requests, here, output.add)
    output.end()
    return _ended(broken, here) or (INCOMPLETE if output.bad else 0)


def _absences(here: BenchContext, python: str | None) -> Callable[[AdapterName], str | None]:
    """Return what says why a library cannot be used; raises `EnvironmentFault` without torch.

    A rank asks it in its own process; else ranks are started later, and another process is asked.
    """
    check_torch(python)
    if here.numbers is None:
        return partial(absence, python=python)
    from evaluator.workloads.collectives.sweep import availability

    return availability


def _measured(
    plan: BenchPlan, requests: Sequence[SweepRequest], here: BenchContext, on_record: RecordListener
) -> BrokenLaunch | None:
    run = BenchRun(
        plan=plan,
        requests=requests,
        machine=this_machine(Path.cwd()),
        run_id=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        on_record=on_record,
    )
    if here.numbers is not None:
        return run.run_inside_ranks(here.numbers)
    launcher = LocalLauncher(trial_environment(), requests[0].threads_per_rank)
    try:
        return run.launch_ranks(launcher)
    finally:
        launcher.close()


def _ended(broken: BrokenLaunch | None, here: BenchContext) -> int:
    """The exit code; of a rank whose launch broke, the end: a thread may wait for a lost peer."""
    if broken is None:
        return 0
    if broken.operation is None:  # else its record says it
        typer.echo(f"error: {broken.adapter}: {broken.failed.message}", err=True)
    if here.numbers is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INCOMPLETE)
    return INCOMPLETE


def _misused(faults: Sequence[OptionFault], here: BenchContext) -> int:
    if here.prints:
        for fault in faults:
            typer.echo(f"error: {fault}", err=True)
        typer.echo("Try 'cclsearch bench collectives --help' for help.", err=True)
    else:
        time.sleep(SILENT_RANK_S)  # the launcher ends all ranks with the first, which has to print
    return MISUSED
