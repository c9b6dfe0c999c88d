"""Progress for a terminal: a table that grows by one row per trial, and what runs below it."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from records.study import Study
from records.trial import Breakdown, Config, Confirmation, Failed, History, Policy, Trial
from search.trial_words import one_line, score_words

BAR_CELLS = 20
MESSAGE_CHARS = 90


class LiveProgress:
    """Draws on a console while it is entered as a context."""

    def __init__(self, console: Console) -> None:
        self._history = History()
        self._study: Study | None = None
        self._heading = ""
        self._activity = ""
        self._phase = ""
        self._confirmed = 0
        self._started = time.monotonic()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._activity = ""
        self._live.stop()

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """Show what is searched."""
        self._study = study
        self._heading = f"study {study_id}: {study.name}, {study.objective.expression}; {strategy}"

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """Show who proposed and why."""
        self._activity = f"trial {ordinal}, {policy.author}: {one_line(policy.rationale, 70)}"
        self._phase = "deciding"

    def config_decided(self, ordinal: int, config: Config) -> None:
        """Show the configuration under way."""
        self._activity = f"trial {ordinal}: {config}"
        self._phase = "starting"

    def phase(self, name: str) -> None:
        """Show the phase of the job under way."""
        self._phase = name

    def trial_finished(self, trial: Trial, history: History) -> None:  # noqa: ARG002 - the port
        """Add a row."""
        self._history = history
        self._activity, self._phase = "proposing", ""

    def confirmation_finished(self, confirmation: Confirmation, total: int) -> None:
        """Show how far the re-measuring is."""
        self._confirmed += confirmation.outcome.status == "measured"
        self._activity = f"re-measuring the best: {self._confirmed} of {total} launches"

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self._heading, style="bold")]
        if self._history:
            parts.append(trial_table(self._history))
        if self._activity:
            elapsed = time.monotonic() - self._started
            phase = f", {self._phase}" if self._phase else ""
            budget = self._study.budget.trials if self._study else 0
            used = f"{self._history.launched_count}/{budget} trials, {elapsed:.0f} s"
            parts.append(Spinner("dots", Text(f"{self._activity}{phase}  [{used}]")))
        return Group(*parts)


def trial_table(history: History) -> Table:
    """All trials of a history, the best one marked."""
    table = Table(box=None, pad_edge=False)
    for heading in ("#", "by", "configuration", "result", "compute / exposed comm. / idle"):
        table.add_column(heading, overflow="fold")
    for trial in history:
        table.add_row(*_cells(trial, best=history.best is trial))
    return table


def _cells(trial: Trial, *, best: bool) -> tuple[RenderableType, ...]:
    config = str(trial.config) if trial.config is not None else "-"
    head = (str(trial.ordinal), trial.policy.author, config)
    if isinstance(trial.outcome, Failed):
        failed = trial.outcome
        message = Text(f"{failed.kind}: {one_line(failed.message, MESSAGE_CHARS)}", style="red")
        return (*head, message, "")
    score = score_words(trial.score) if trial.score else ""
    result = Text(f"{score}  best" if best else score, style="bold green" if best else "")
    bar = _bar(trial.outcome.breakdown) if trial.outcome.breakdown else Text("")
    return (*head, result, bar)


def _bar(breakdown: Breakdown) -> Text:
    parts = (
        (breakdown.compute_s, "█", "green"),
        (breakdown.exposed_communication_s, "▒", "yellow"),
        (breakdown.other_s + breakdown.idle_s, "·", "dim"),
    )
    total_s = sum(seconds for seconds, _, _ in parts)
    bar = Text()
    for seconds, mark, style in parts:
        bar.append(mark * round(BAR_CELLS * seconds / total_s) if total_s else "", style=style)
    shares = " ".join(f"{seconds / total_s:.0%}" for seconds, _, _ in parts) if total_s else ""
    return bar.append(f" {shares}", style="dim")
