"""Prints the records of a collective benchmark as they come."""

import typer

from evaluator.bench.columns import terminal_header, terminal_row
from evaluator.bench.record import BenchRecord
from evaluator.timing.bench_csv import ABSENT


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
        if last is None or last.params.collective_name != record.params.collective_name:
            typer.echo(f"\n{heading(record.params.collective_name)}\n{terminal_header()}")
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
    environment, params = record.environment, record.params
    backend = f"{environment.comm_backend_name} {environment.comm_backend_version or ''}".rstrip()
    facts = (
        f"{environment.comm_adapter_name} on {backend}",
        f"{environment.device_type} {environment.device_name or ABSENT}",
        f"torch {environment.torch_version}",
        params.dispatch_mode,
        f"warmup {params.warmup_iterations}",
        f"iters {params.measure_iterations}",
        f"sync interval {params.sync_interval}",
        f"bandwidth by {record.config.bandwidth_convention}",
        f"round {record.place.round + 1} of {record.config.rounds}",
    )
    return ", ".join(facts)
