"""Progress for a terminal: one row per trial that stays, and below it what is under way.

Rows are printed once and scroll away like any output, so a long search stays readable.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from evaluator.timing.noise import Noise
from evaluator.timing.verdict import Verdict
from records.history import History
from records.study import Measure, Study
from records.trial import Breakdown, Config, Failed, Policy, Repeat, Trial
from search.finding import reached
from search.progress import result_words
from search.standing import Race
from search.words.config import difference
from search.words.objective import objective_words
from search.words.repeat import PURPOSES, noise_words, race_words
from search.words.trial import number, one_line, reached_words, remarks

NARROW, WIDE = 100, 120
MESSAGE_LINES = 3
ACTIVITY_CHARS = 400
RESULT_CELLS, AUTHOR_CELLS, BUDGET_CELLS, GAP = 14, 10, 6, 2
LEGEND = "* best so far   step: █ compute  ▒ exposed communication  · other and idle"


class LiveProgress:
    """Draws on a console from the start of a study until its context is left.

    `history` is what is on record already.
    """

    def __init__(
        self,
        console: Console,
        history: History,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._history = history
        self._study: Study | None = None
        self._repeat_count = 0
        self._under_way: Mapping[int | None, _Doing] = {}
        """By ordinal; None for launches that are made again. Replaced, as it is drawn meanwhile."""
        self._clock = clock
        self._started_s = clock()
        self._spinner = Spinner("bouncingBar")
        self._live = Live(
            console=console, get_renderable=self.footer, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """Say what is searched."""
        self._study = study
        self._console.print(Text(f"study {study_id}: {study.name}", style="bold"))
        self._console.print(Text(f"objective {objective_words(study)}; {strategy}\n"))
        if self._history:
            print_trials(self._console, self._history.trials, self._history)
        self._live.start()

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """Show who proposed and why."""
        self._over(None)
        self._do(ordinal, "proposed", f"{policy.author}: {policy.rationale}")

    def config_decided(self, ordinal: int, config: Config) -> None:
        """Show the configuration under way."""
        self._do(ordinal, "starting", _settings(config, self._history))

    def phase(self, name: str, ordinal: int | None) -> None:
        """Show the phase of a job under way."""
        doing = self._under_way.get(ordinal)
        self._do(ordinal, name, doing.activity if doing else "")

    def trial_finished(self, trial: Trial, history: History) -> None:
        """Print the trial's row."""
        print_trials(self._console, (trial,), history)
        self._history = history
        self._over(trial.ordinal)

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Print what equal launches differ by, and what the search can see."""
        self._console.print(Text(f"    noise: {noise_words(noise, measure)}", style="dim"))
        self._over(None)

    def repeat_finished(self, repeat: Repeat) -> None:
        """Show which launch was made again."""
        self._repeat_count += 1
        which = f"trial {repeat.ordinal} in round {repeat.round + 1}, {PURPOSES[repeat.purpose]}"
        self._do(None, "", which)

    def race_decided(self, race: Race) -> None:
        """Print who leads after a race."""
        self._console.print(Text(f"    raced: {race_words(race)}", style="dim"))
        if race.comparison.verdict is Verdict.FAST:
            self._history = replace(self._history, incumbent=race.challenger)
        self._over(None)

    def notice(self, words: str) -> None:
        """Print it so that it is seen among the trials."""
        self._console.print(Text(f"    NOTICE: {words}", style="bold yellow"))

    def footer(self) -> RenderableType:
        """What is under way, and what is used up."""
        footer = Table.grid(padding=(0, 1, 0, 0))
        lines = [doing.line(ordinal) for ordinal, doing in self._under_way.items()]
        for place, line in enumerate(lines or ["proposing"]):
            footer.add_row(self._spinner if place == 0 else "", _on_one_line(line))
        if self._study is not None:
            used, total = self._history.launched_count, self._study.budget.trials
            bar = ProgressBar(total=total, completed=min(used, total), width=BUDGET_CELLS)
            footer.add_row(bar, _on_one_line(", ".join(self._facts(used, total))))
        return Group("", footer)

    def _do(self, ordinal: int | None, phase: str, activity: str) -> None:
        self._under_way = {**self._under_way, ordinal: _Doing(phase, activity)}

    def _over(self, ordinal: int | None) -> None:
        self._under_way = {n: doing for n, doing in self._under_way.items() if n != ordinal}

    def _facts(self, used: int, total: int) -> list[str]:
        """What is used up, how it stands, and what went wrong."""
        minutes, seconds = divmod(int(self._clock() - self._started_s), 60)
        again = f" and {self._repeat_count} again" if self._repeat_count else ""
        facts = [f"{used} of {total} trials{again}", f"{minutes}:{seconds:02} min"]
        best = self._history.best
        if best is not None and best.score is not None:
            facts.append(f"best {result_words(best, self._history)} in trial {best.ordinal}")
            facts += remarks(best)
        kinds = Counter(t.outcome.kind for t in self._history if isinstance(t.outcome, Failed))
        return facts + [f"{count} {kind}" for kind, count in kinds.most_common()]


@dataclass(frozen=True, slots=True)
class _Doing:
    """What is under way in one place."""

    phase: str
    activity: str

    def line(self, ordinal: int | None) -> str:
        """It in words."""
        task = "launching again" if ordinal is None else f"trial {ordinal}"
        parts = (task, self.phase, one_line(self.activity, ACTIVITY_CHARS))
        return " · ".join(part for part in parts if part)


def print_trials(console: Console, trials: Sequence[Trial], history: History) -> None:
    """Print rows for trials of a history, under headings if the first trial is among them.

    Configurations are told by what differs from the first one. Columns depend on the width of the
    console only, so that rows printed one after the other line up.
    """
    width = console.width
    is_first = trials[:1] == history.trials[:1]
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=is_first)
    table.add_column("#", width=3, justify="right")
    if width >= NARROW:
        table.add_column("by", width=AUTHOR_CELLS, no_wrap=True)
    table.add_column("configuration", width=_config_width(width), overflow="fold")
    table.add_column("result", width=RESULT_CELLS, no_wrap=True)
    table.add_column("to seed", width=7, justify="right", no_wrap=True)
    table.add_column("step", no_wrap=True)
    for trial in trials:
        table.add_row(*_cells(trial, history, width))
    if is_first:
        console.print(Text(LEGEND, style="dim"))
    console.print(table)


def _config_width(width: int) -> int:
    """What the other columns and the gaps between them leave."""
    columns = [3, RESULT_CELLS, 7, _bar_cells(width)]
    if width >= NARROW:
        columns.append(AUTHOR_CELLS)
    if width >= WIDE:
        columns[3] += len(" 100% 100% 100%")
    return max(24, width - sum(columns) - GAP * len(columns))


def _bar_cells(width: int) -> int:
    return 20 if width >= NARROW else 12


def _cells(trial: Trial, history: History, width: int) -> tuple[RenderableType, ...]:
    is_best = history.best is trial
    style = "bold green" if is_best else ""
    head: tuple[RenderableType, ...] = (f"{trial.ordinal}{'*' if is_best else ' '}",)
    if width >= NARROW:
        head = (*head, one_line(trial.policy.author, AUTHOR_CELLS))
    words = _settings(trial.config, history) if trial.config is not None else ""
    if isinstance(trial.outcome, Failed):
        limit = MESSAGE_LINES * _config_width(width)
        cause = Text(one_line(trial.outcome.message, limit), style="red")
        told = Group(Text(words), cause) if words else cause
        return (*head, told, Text(trial.outcome.kind, style="red"), "", "")
    found, unit = reached(trial, history), trial.score.unit if trial.score else ""
    result = Text("" if found is None else f"{number(found.centre)} {unit}".rstrip(), style=style)
    bar = _bar(trial.outcome.breakdown, width) if trial.outcome.breakdown else Text("")
    told = Text(words, style=style)
    several = [] if found is None or found.launch_count == 1 else [reached_words(found, unit)]
    for caveat in (*several, *remarks(trial)):
        told.append(f"\n{caveat}", style="dim")
    return (*head, told, result, Text(_to_seed(trial, history)), bar)


def _settings(config: Config, history: History) -> str:
    """What tells a configuration from the first one decided, which is told in full."""
    base = next((trial.config for trial in history if trial.config is not None), config)
    return str(config) if config == base else difference(config, base)


def _to_seed(trial: Trial, history: History) -> str:
    """How many times better than the seed, where both have a positive score."""
    seed = history.trials[0]
    own, base = reached(trial, history), reached(seed, history)
    if trial is seed or own is None or base is None or trial.score is None:
        return ""
    if min(own.centre, base.centre) <= 0:
        return ""
    lower_is_better = trial.score.cost == trial.score.value
    ratio = base.centre / own.centre if lower_is_better else own.centre / base.centre
    return f"{ratio:.2f}x"


def _bar(breakdown: Breakdown, width: int) -> Text:
    parts = (
        (breakdown.compute_s, "█", "green"),
        (breakdown.exposed_communication_s, "▒", "yellow"),
        (breakdown.other_s + breakdown.idle_s, "·", "dim"),
    )
    total_s = sum(seconds for seconds, _, _ in parts)
    if total_s <= 0:
        return Text("")
    bar, until_s = Text(), 0.0
    for seconds, mark, style in parts:
        until_s += seconds
        bar.append(mark * (round(_bar_cells(width) * until_s / total_s) - len(bar)), style=style)
    if width >= WIDE:
        shares = " ".join(f"{seconds / total_s:.0%}" for seconds, _, _ in parts)
        bar.append(f" {shares}", style="dim")
    return bar


def _on_one_line(words: str) -> Text:
    return Text(words, no_wrap=True, overflow="ellipsis")
