"""Takes the records of a benchmark to where they were asked for: files, and a table or JSON."""

from pathlib import Path

import typer

from evaluator.bench.choice import Choice
from evaluator.bench.csv_files import ResultFiles
from evaluator.bench.plan import Plan
from evaluator.bench.record import BenchRecord
from records.codec import to_json
from search.bench.printing import Table

BAD = ("failed", "timeout", "wrong_result")


class Output:
    """What one command prints and writes; raises `StudyError` at once for files it cannot add to.

    `bad` are the points that went wrong.
    """

    def __init__(self, plan: Plan, choice: Choice, *, as_json: bool) -> None:
        self.bad: list[BenchRecord] = []
        self._quiet, self._as_json = plan.config.quiet, as_json
        self._table = Table()
        self._files: dict[str, ResultFiles] = {}
        if plan.config.csv_enabled:
            for request in choice.requests:
                adapter = request.adapter.value
                files = ResultFiles(
                    _folder(plan, adapter), adapter=adapter, swept=plan.config.run_all_reduce_ops
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
        if record.status in BAD:
            self.bad.append(record)
        if self._as_json:
            typer.echo(to_json(record))
        elif not self._quiet:
            self._table.add(record)

    def end(self) -> None:
        """Close the table, and tell where files are and what went wrong."""
        self._table.end_launch()
        for record in self.bad:
            typer.echo(f"error: {_wrong(record)}", err=True)
        folders = [str(files.folder) for files in self._files.values()]
        if folders and not self._quiet:
            typer.echo(f"written: {', '.join(folders)}", err=self._as_json)


def _folder(plan: Plan, adapter: str) -> Path:
    """Where an adapter's files go; a folder for each where all are measured."""
    if plan.config.output_dir is None:
        return Path(adapter)
    root = Path(plan.config.output_dir)
    return root / adapter if plan.config.run_all_comm_adapters else root


def _wrong(record: BenchRecord) -> str:
    params = record.params
    operation = f" {params.reduce_op}" if params.reduce_op else ""
    return (
        f"{params.comm_adapter}: {params.collective_name}{operation} {params.dtype} "
        f"{record.message_size_bytes} B: {record.status.replace('_', ' ')}: {record.reason}"
    )
