"""Prints what metrics of trials on record come to, while they are computed and kept."""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evaluator.metrics.definitions import Definition, definitions
from records.rows import StudyRow
from records.store import Store
from records.trial import MetricValue
from search.afterwards.recording import Done, computed_afterwards
from search.commands.options import store_flag
from search.errors import Interrupted
from search.reading import recorded
from search.tables import Column, numbers, print_table
from search.terminal import Terminal, on_terminal
from search.words.trial import absences, number, one_line

TOLD_VALUES = 4
REASON_CHARS = 200
OnStudy = Callable[[StudyRow, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Afterwards:
    """Which metrics of which studies; all metrics without names, every study without studies."""

    studies: Sequence[str]
    names: Sequence[str]
    metrics_file: Path | None
    store: Path | None


def print_computed(asked: Afterwards, *, as_json: bool) -> None:
    """Compute, keep and print; raises `Interrupted` on Ctrl-C, when all is kept so far."""
    found = definitions(asked.metrics_file, asked.names)
    with recorded(asked.store) as records:
        rows = [records.find(study) for study in asked.studies] or list(records.studies())
        tally = _Tally()
        with (
            _bar(shown=not as_json) as (on_study, on_trial),
            closing(
                computed_afterwards(rows, records, found.known, asked.metrics_file, on_study)
            ) as computed,
        ):
            try:
                for done in computed:
                    tally.add(done)
                    typer.echo(json.dumps(_facts(done)) if as_json else _line(done))
                    on_trial()
            except KeyboardInterrupt:
                what = "interrupted; what was computed is on record"
                raise Interrupted(f"{what}\nnext: the same command goes on") from None
        if not as_json:
            _print_summary(tally, found.known, found.broken, rows, records)


class _Tally:
    """How often each metric got a value, had none, could not be read, or replaced an older one."""

    def __init__(self) -> None:
        self.trial_count = 0
        self.values: Counter[str] = Counter()
        self.absent: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self.replaced: dict[str, set[int]] = defaultdict(set)

    def add(self, done: Done) -> None:
        """Count what was computed of one trial."""
        self.trial_count += 1
        self.values.update(value.name for value in done.answer.values)
        self.absent.update(list(done.answer.absent))
        self.unread.update(list(done.answer.unread))
        for name, value in done.before.items():
            if name not in done.answer.unread:
                self.replaced[name].add(value.version)


@contextmanager
def _bar(*, shown: bool) -> Iterator[tuple[OnStudy, Callable[[], None]]]:
    """Show how many trials of how many are done, where somebody looks."""
    console = Terminal(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=on_terminal(),
        disable=not shown or not console.is_terminal or console.is_dumb_terminal,
    ) as progress:
        task = progress.add_task("", total=None)

        def on_study(row: StudyRow, count: int) -> None:
            progress.reset(task, total=count, description=f"computing {row.id}")

        yield on_study, lambda: progress.advance(task)


def _line(done: Done) -> str:
    """One trial: the first values, and why others could not be computed."""
    answer = done.answer
    told = [_value_words(value, done.before.get(value.name)) for value in answer.values]
    if len(told) > TOLD_VALUES:
        told = [*told[:TOLD_VALUES], f"{len(told) - TOLD_VALUES} more"]
    if answer.absent:
        named = ", ".join(list(answer.absent)[:TOLD_VALUES])
        first = next(iter(answer.absent.values()))
        alike = set(answer.absent.values()) == {first}
        many = len(answer.absent) > TOLD_VALUES or not alike
        words = f"no value of {len(answer.absent)} metrics" if many else f"no {named}: {first}"
        told.append(one_line(words, REASON_CHARS))
    told += [one_line(line, REASON_CHARS) for line in absences(answer.unread)]
    return f"trial {answer.study_id}:{answer.ordinal}: {'; '.join(told)}"


def _value_words(value: MetricValue, before: MetricValue | None) -> str:
    words = f"{value.name} {number(value.value)} {value.unit}".rstrip()
    if before is None:
        return words
    return f"{words} (version {before.version}: {number(before.value)})"


def _facts(done: Done) -> dict[str, object]:
    """One trial for programs, on a line of its own."""
    answer = done.answer
    return {
        "study_id": answer.study_id,
        "ordinal": answer.ordinal,
        "values": [asdict(value) for value in answer.values],
        "absent": dict(answer.absent),
        "unread": dict(answer.unread),
        "before": [asdict(value) for value in done.before.values()],
    }


def _print_summary(
    tally: _Tally,
    known: Sequence[Definition],
    broken: Mapping[str, str],
    rows: Sequence[StudyRow],
    records: Store,
) -> None:
    """How it went metric by metric, and what to type next."""
    for line in absences(broken):
        typer.echo(line)
    looked_at = f"{len(rows)} {'study' if len(rows) == 1 else 'studies'}"
    if not tally.trial_count:
        typer.echo(f"nothing to compute: every trial of {looked_at} has all of these metrics")
        return
    touched = {*tally.values, *tally.absent, *tally.unread}
    shown = [each.metric for each in known if each.metric.name in touched]
    typer.echo("")
    print_table(
        Column(heading="metric", cells=[each.name for each in shown], yielding=True),
        numbers("version", [str(each.version) for each in shown]),
        numbers("values", [str(tally.values[each.name]) for each in shown]),
        numbers("absent", [str(tally.absent[each.name]) for each in shown]),
        numbers("not read", [str(tally.unread[each.name]) for each in shown]),
        Column(heading="in place of", cells=[_versions(tally.replaced[e.name]) for e in shown]),
    )
    typer.echo(f"computed of {tally.trial_count} trials of {looked_at}, and on record")
    if tally.unread:
        typer.echo("what could not be read is computed once its files are back: compute again")
    new = next((each for each in shown if tally.values[each.name]), None)
    if new is not None:
        one = f"cclsearch show {rows[0].id} --objective {shlex.quote(new.name)}"
        command = one if len(rows) == 1 else f"cclsearch leaderboard --by {shlex.quote(new.name)}"
        typer.echo(f"next: {command}{store_flag(records.root)}")


def _versions(versions: Iterable[int]) -> str:
    return ", ".join(f"version {version}" for version in sorted(versions))
