"""Progress for a terminal: one row per trial that stays, and below it what is under way.

Rows are printed once and scroll away like any output, so a long search stays readable.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from records.study import Measure, Study
from records.trial import Breakdown, Config, Failed, History, Policy, Repeat, Score, Trial
from search.config_words import difference
from search.repeat_words import PURPOSES, noise_words, race_words
from search.standing import Race
from search.trial_words import caveats, one_line, score_words

NARROW, WIDE = 100, 120
MESSAGE_LINES = 3
ACTIVITY_CHARS = 400
RESULT_CELLS, AUTHOR_CELLS, BUDGET_CELLS, GAP = 14, 10, 6, 2
LEGEND = "* best so far   step: █ compute  ▒ exposed communication  · other and idle"


def on_terminal() -> bool:
    """Whether somebody looks at standard output who can be shown more than plain lines."""
    return sys.stdout.isatty() and not Console().is_dumb_terminal


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
        self._task = ""
        self._phase = ""
        self._activity = ""
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
        self._console.print(Text(f"objective {study.objective.expression}; {strategy}\n"))
        if self._history:
            print_trials(self._console, self._history.trials, self._history)
        self._activity = "proposing"
        self._live.start()

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """Show who proposed and why."""
        self._activity = f"{policy.author}: {policy.rationale}"
        self._task, self._phase = f"trial {ordinal}", "deciding"

    def config_decided(self, ordinal: int, config: Config) -> None:
        """Show the configuration under way."""
        self._activity = _settings(config, self._history)
        self._task, self._phase = f"trial {ordinal}", "starting"

    def phase(self, name: str) -> None:
        """Show the phase of the job under way."""
        if not self._task:
            self._task, self._activity = "launching again", ""
        self._phase = name

    def trial_finished(self, trial: Trial, history: History) -> None:
        """Print the trial's row."""
        print_trials(self._console, (trial,), history)
        self._history = history
        self._task, self._phase, self._activity = "", "", "proposing"

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Print what equal launches differ by, and what the search can see."""
        self._console.print(Text(f"    noise: {noise_words(noise, measure)}", style="dim"))

    def repeat_finished(self, repeat: Repeat) -> None:
        """Show which launch was made again."""
        self._repeat_count += 1
        self._task, self._phase = "launching again", ""
        self._activity = (
            f"trial {repeat.ordinal} in round {repeat.round + 1}, {PURPOSES[repeat.purpose]}"
        )

    def race_decided(self, race: Race) -> None:
        """Print who leads after a race."""
        self._console.print(Text(f"    raced: {race_words(race)}", style="dim"))
        if race.comparison.verdict is Verdict.FAST:
            self._history = replace(self._history, incumbent=race.challenger)
        self._task, self._phase, self._activity = "", "", "proposing"

    def footer(self) -> RenderableType:
        """What is under way, and what is used up."""
        parts = (self._task, self._phase, one_line(self._activity, ACTIVITY_CHARS))
        words = " · ".join(part for part in parts if part)
        footer = Table.grid(padding=(0, 1, 0, 0))
        footer.add_row(self._spinner, _on_one_line(words))
        if self._study is not None:
            used, total = self._history.launched_count, self._study.budget.trials
            bar = ProgressBar(total=total, completed=min(used, total), width=BUDGET_CELLS)
            footer.add_row(bar, _on_one_line(", ".join(self._facts(used, total))))
        return Group("", footer)

    def _facts(self, used: int, total: int) -> list[str]:
        """What is used up, how it stands, and what went wrong."""
        minutes, seconds = divmod(int(self._clock() - self._started_s), 60)
        again = f" and {self._repeat_count} again" if self._repeat_count else ""
        facts = [f"{used} of {total} trials{again}", f"{minutes}:{seconds:02} min"]
        best = self._history.best
        if best is not None and best.score is not None:
            facts.append(f"best {score_words(best.score)} in trial {best.ordinal}")
            facts += caveats(best.outcome)
        kinds = Counter(t.outcome.kind for t in self._history if isinstance(t.outcome, Failed))
        return facts + [f"{count} {kind}" for kind, count in kinds.most_common()]


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
    result = Text(score_words(trial.score) if trial.score else "", style=style)
    bar = _bar(trial.outcome.breakdown, width) if trial.outcome.breakdown else Text("")
    told = Text(words, style=style)
    for caveat in caveats(trial.outcome):
        told.append(f"\n{caveat}", style="dim")
    return (*head, told, result, Text(_to_seed(trial, history)), bar)


def _settings(config: Config, history: History) -> str:
    """What tells a configuration from the first one decided, which is told in full."""
    base = next((trial.config for trial in history if trial.config is not None), config)
    return str(config) if config == base else difference(config, base)


def _to_seed(trial: Trial, history: History) -> str:
    """How many times better than the seed, where both have a positive score."""
    seed = history.trials[0]
    if trial is seed or seed.score is None or trial.score is None:
        return ""
    if min(seed.score.value, trial.score.value) <= 0:
        return ""
    return f"{_better(seed.score, trial.score):.2f}x"


def _better(old: Score, new: Score) -> float:
    lower_is_better = new.cost == new.value
    return old.value / new.value if lower_is_better else new.value / old.value


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
