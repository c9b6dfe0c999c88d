"""Runs a collective benchmark that was asked for on the command line."""

import os
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import typer

from evaluator.bench.asked import Asked, Surroundings, understood
from evaluator.bench.choice import choose
from evaluator.bench.conduct import Broken, RecordListener, conduct, conduct_inside
from evaluator.bench.environment import this_machine
from evaluator.bench.faults import Fault
from evaluator.bench.plan import Plan
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_gpus
from evaluator.workloads.collectives.sweep_request import SweepRequest
from search.bench.output import Output
from search.bench.started import Started, how_started
from search.settings import trial_environment

MISUSED, INCOMPLETE = 2, 3
SILENT_RANK_S = 5.0


def bench_collectives(asked: Asked) -> int:
    """Measure what was asked for, print it and write it down; gives the exit code."""
    started = how_started()
    here = Surroundings(
        gpu_count=len(local_gpus()),
        started_ranks=started.numbers.world_size if started.numbers else None,
        closed=started.closed,
    )
    plan = understood(asked, here)
    if isinstance(plan, tuple):
        return _misused(plan, started)
    choice = choose(plan, started.closed)
    if not started.speaks:
        return _ended(_measured(plan, choice.requests, started, lambda _record: None), started)
    output = Output(plan, choice, as_json=asked.as_json)
    broken = _measured(plan, choice.requests, started, output.add)
    output.end()
    return _ended(broken, started) or (INCOMPLETE if output.bad else 0)


def _measured(
    plan: Plan, requests: Sequence[SweepRequest], started: Started, on_record: RecordListener
) -> Broken | None:
    machine = this_machine(Path.cwd())
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    if started.numbers is not None:
        return conduct_inside(
            plan,
            requests,
            numbers=started.numbers,
            machine=machine,
            run_id=run_id,
            on_record=on_record,
        )
    launcher = LocalLauncher(trial_environment(), requests[0].threads_per_rank)
    try:
        return conduct(
            plan,
            requests,
            launcher=launcher,
            machine=machine,
            run_id=run_id,
            on_record=on_record,
        )
    finally:
        launcher.close()


def _ended(broken: Broken | None, started: Started) -> int:
    """The exit code; of a rank whose launch broke, the end: a thread may wait for a lost peer."""
    if broken is None:
        return 0
    if broken.operation is None:  # else its record told it
        typer.echo(f"error: {broken.turn.request.adapter}: {broken.failed.message}", err=True)
    if started.numbers is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INCOMPLETE)
    return INCOMPLETE


def _misused(faults: Sequence[Fault], started: Started) -> int:
    if started.speaks:
        for fault in faults:
            typer.echo(f"error: {fault}", err=True)
        typer.echo("Try 'cclsearch bench collectives --help' for help.", err=True)
    else:
        time.sleep(SILENT_RANK_S)  # the launcher ends all ranks with the first, which has to speak
    return MISUSED
