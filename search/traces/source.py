"""Where traces to look at come from: a folder or file of the user's, or a trial on record."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evaluator.metrics.base import Evidence
from evaluator.readers.folder import read_folder
from evaluator.readers.several import OnFile
from search.terminal import Terminal
from search.traces.traced import Traced

ON_RECORD = "trial:"


def traced(name: str, store: Path | None = None, *, use_cache: bool = True) -> Traced:
    """The traces in a folder or one file, or those of a trial named `trial:3` or `trial:STUDY:3`.

    A bar on the terminal tells how far reading is. Raises TraceError for a file that is refused,
    StudyError where there is no such trial, or it left no traces.
    """
    if name.startswith(ON_RECORD):
        # Imported here: what reads records takes longer to load than most traces to read.
        from search.traces.trial import traced_trial

        return traced_trial(name.removeprefix(ON_RECORD), store)
    with _bar() as on_file:
        traces = read_folder(Path(name), use_cache=use_cache, on_file=on_file)
    return Traced(name=name, evidence=Evidence(traces=traces), traces=traces)


@contextmanager
def _bar() -> Iterator[OnFile]:
    """Show how many files of how many are read, where somebody looks."""
    console = Terminal(stderr=True)
    with Progress(
        TextColumn("reading"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or console.is_dumb_terminal,
    ) as progress:
        task = progress.add_task("reading", total=None)

        def on_file(done: int, total: int, _path: Path) -> None:
            progress.update(task, completed=done, total=total)

        yield on_file
