"""Text tables, and the progress of a search as live rows, plain lines or JSON events."""

import json
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, TextIO, assert_never

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table as RichTable
from rich.text import Text

from evaluator.objective import may_vary_work
from evaluator.timing.decision import Noise, Verdict, detectable
from records.codec import to_json
from records.study import Measure, Study
from records.trial import (
    Breakdown,
    Config,
    Failed,
    History,
    Policy,
    Repeat,
    Trial,
)
from search.loop.budget import HOUR_S
from search.loop.leader import Race, claim_rule
from search.loop.running import RunningLaunch, TimeLeft, time_left
from search.loop.study_result import trial_spread
from search.views.console import Terminal, echo_styled, on_terminal
from search.views.document import (
    Block,
    Chart,
    Code,
    Column,
    Diff,
    Document,
    Facts,
    Paragraph,
    Table,
    Tone,
)
from search.views.format import (
    caveats,
    format_breakdown,
    format_count,
    format_difference,
    format_number,
    line_words,
    one_line,
    reached_words,
    remarks,
)
from search.views.study import (
    PURPOSES,
    launch_words,
    left_basis,
    left_words,
    node_hours_words,
    noise_words,
    objective_words,
    race_words,
)
from search.views.trial import outcome_facts, trial_facts

PAGE_CELLS = 80
GAP = 2
CELL_CHARS = 4000
"""A hostile trace may hold names of any length."""

LEAST_CELLS = 8
"""What a yielding column keeps."""


def page_cells() -> int:
    """Width to print in: that of the terminal, and of a page where there is none."""
    return Terminal().width if on_terminal() else PAGE_CELLS


def table_lines(table: Table, width: int) -> list[str]:
    """The headings and rows of a table, no line wider than `width` if a column yields.

    Laid out here, because `rich.table` takes a hundred times as long for thousands of rows.
    """
    texts, numeric = _texts(table), table.numeric
    widths = [max(map(cell_len, column)) for column in texts]
    spare = width - sum(widths) - GAP * (len(widths) - 1)
    for place in table.yielding if spare < 0 else ():
        least = max(LEAST_CELLS, cell_len(texts[place][0]))
        widths[place] = max(least, widths[place] + spare)
    aligned = (
        [_cell(text, cells, is_number=place in numeric) for text in column]
        for place, (column, cells) in enumerate(zip(texts, widths, strict=True))
    )
    return [(" " * GAP).join(row).rstrip() for row in zip(*aligned, strict=True)]


def table_width(table: Table) -> int:
    """How wide a table is in which no column yields."""
    widths = [max(map(cell_len, column)) for column in _texts(table)]
    return sum(widths) + GAP * (len(widths) - 1)


def _texts(table: Table) -> list[list[str]]:
    """The heading and the cells of each column."""
    rows = [table.headings, *([cell.marked for cell in row.cells] for row in table.rows)]
    return [[one_line(text, CELL_CHARS) for text in column] for column in zip(*rows, strict=True)]


def _cell(text: str, cells: int, *, is_number: bool) -> str:
    if cell_len(text) > cells:
        return f"{set_cell_size(text, cells - 3)}..."
    blank = " " * (cells - cell_len(text))
    return blank + text if is_number else text + blank


def print_table(*columns: Column) -> None:
    """Print columns side by side; a pipe gets them as wide as a page."""
    for line in table_lines(Table.of(*columns), page_cells()):
        typer.echo(line)


def echo_wrapped(line: str, indent: int | None = None) -> None:
    """Print a line, on a terminal continued below where the page ends; no word is ever broken.

    A command to copy stays whole.
    """
    stays = line.startswith("next: ")
    if not on_terminal() or stays or cell_len(line) <= page_cells():
        typer.echo(line)
        return
    if indent is None:
        indent = len(line) - len(line.lstrip()) + GAP
    typer.echo(
        textwrap.fill(
            line,
            page_cells(),
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def print_document(document: Document) -> None:
    """Print a document without its charts: a line for each fact, so that it can be found alone."""
    typer.echo(document.title)
    for section in document.sections:
        lines = [line for block in section.blocks for line in block_lines(block)]
        if lines:
            typer.echo(f"\n{section.heading}")
        for line in lines:
            echo_wrapped(f"  {line}")


STYLES: Final[Mapping[Tone, str]] = {
    "fast": "green",
    "slow": "red",
    "same": "blue",
    "open": "yellow",
}


def print_blocks(blocks: Iterable[Block], *, spaced: bool = False) -> None:
    """Print blocks below each other in the colours of their tones, as wide as the terminal is.

    With `spaced` there is an empty line around each table.
    """
    shown = [block for block in blocks if block_lines(block)]
    for place, block in enumerate(shown):
        if (
            spaced
            and place
            and any(isinstance(each, Table) for each in shown[place - 1 : place + 1])
        ):
            typer.echo("")
        _print_block(block, spaced=spaced)


def _print_block(block: Block, *, spaced: bool) -> None:
    lines = block_lines(block, page_cells())
    if isinstance(block, Table):
        heads = len(lines) - len(block.rows)
        if spaced and block.about:
            lines[0] = block.about
        for line in lines[:heads]:
            typer.echo(line)
        for row, line in zip(block.rows, lines[heads:], strict=True):
            echo_styled(Text(line, STYLES.get(row.tone, "")))
    elif isinstance(block, Facts) and block.tone:
        for line in lines:
            echo_styled(Text(line, f"bold {STYLES[block.tone]}"))
    else:
        for line in lines:
            echo_wrapped(line)


def block_lines(block: Block, width: int = PAGE_CELLS) -> list[str]:
    """The lines of a block; nothing for a chart."""
    match block:
        case Paragraph(text=text):
            return [text]
        case Facts(is_aside=True, summary=summary):
            return [f"{summary}; --json says why"]
        case Facts(lines=lines):
            return [f"{label}: {text}" for label, text in lines]
        case Table():
            about = [f"{block.about}:"] if block.about else []
            return [*about, *table_lines(block, width)]
        case Chart():
            return []
        case Code(text=text):
            return text.splitlines()
        case Diff(lines=lines):
            return [*lines]
        case _:
            assert_never(block)


SILENCE_S = 20.0
"""A plain search that printed nothing for this long prints the phase that a launch enters."""
MESSAGE_CHARS = 200
STEP_TIME = "step_time"
VARIED_WORK = "work: a step may process any number of tokens, as the objective counts per token"


def _varies_work(study: Study) -> bool:
    """Whether steps of different configurations may differ in work; requests never do."""
    return may_vary_work(study) and study.workload.phase == "training"


class PlainProgress:
    """One line per trial, without colours or cursor movement, and the phases of long launches."""

    def __init__(
        self, out: TextIO = sys.stdout, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._objective = STEP_TIME
        self._clock = clock
        self._said_s = clock()

    def _say(self, line: str) -> None:
        self._said_s = self._clock()
        _print(self._out, line)

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """Print what is searched."""
        self._objective = study.objective.expression
        self._say(f"study {study_id}: {study.name}, objective {objective_words(study)}")
        if _varies_work(study):
            self._say(VARIED_WORK)
        self._say(strategy)

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """Print nothing: the line comes when the trial ends."""

    def config_decided(self, ordinal: int, config: Config) -> None:
        """Print nothing."""

    def phase(self, name: str, ordinal: int | None) -> None:
        """Print the phase that a launch enters, after a silence."""
        if self._clock() - self._said_s >= SILENCE_S:
            which = "repeated launches" if ordinal is None else f"trial {ordinal}"
            self._say(f"... {which}: {name}")

    def trial_finished(self, trial: Trial, history: History) -> None:
        """Print the trial's line."""
        self._say(trial_line(trial, history))

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Print how much equal launches differ, and what the search can detect."""
        self._say(f"noise: {noise_words(noise, measure)}")

    def repeat_finished(self, repeat: Repeat) -> None:
        """Print the outcome of a repeat launch."""
        self._say(repeat_line(repeat, self._objective))

    def race_decided(self, race: Race) -> None:
        """Print which trial leads after a comparison."""
        self._say(f"compared: {race_words(race)}")

    def nodes_held(self, node_s: float) -> None:
        """Print nothing: the closing report has it."""

    def notice(self, words: str) -> None:
        """Print it so that it stands out among the trials."""
        self._say(f"NOTICE: {words}")


def trial_line(trial: Trial, history: History) -> str:
    """Ordinal, author, configuration and result of a trial on one line."""
    config = str(trial.config) if trial.config is not None else "(no configuration)"
    head = f"trial {trial.ordinal}  {trial.policy.author}  {config}"
    if isinstance(trial.outcome, Failed):
        failed = trial.outcome
        return f"{head}  FAILED {failed.kind}: {one_line(failed.message, MESSAGE_CHARS)}"
    score = result_words(trial, history)
    front = "  on the front" if trial.ordinal in history.front else ""
    best = "  best so far" if history.best is trial else front
    parts = f"  ({format_breakdown(trial.outcome.breakdown)})" if trial.outcome.breakdown else ""
    return f"{head}  {score}{best}{parts}{_in_parentheses(remarks(trial))}"


def repeat_line(repeat: Repeat, objective: str) -> str:
    """Ordinal, purpose, round and outcome of a repeat launch on one line.

    The outcome is the metric that the objective is, or else the step time.
    """
    outcome = repeat.outcome
    if isinstance(outcome, Failed):
        went = f"FAILED {one_line(str(outcome), MESSAGE_CHARS)}"
    else:
        metrics = {each.name: each for each in outcome.metrics}
        shown = metrics.get(objective) or metrics.get(STEP_TIME)
        value = shown and f"{shown.name} {format_number(shown.value)} {shown.unit}"
        went = (value or "measured") + _in_parentheses(caveats(outcome))
    what_for = PURPOSES[repeat.purpose]
    return f"trial {repeat.ordinal} repeated {what_for}, round {repeat.round + 1}: {went}"


def result_words(trial: Trial, history: History) -> str:
    """What a trial reached, with its launches where there are several; empty without a score."""
    found = trial_spread(trial, history)
    if found is None or trial.score is None:
        return ""
    return line_words(found, trial.score.unit)


def _in_parentheses(words: Sequence[str]) -> str:
    return f"  ({'; '.join(words)})" if words else ""


class JsonProgress:
    """One JSON object per event, one per line; `words` are what `PlainProgress` prints of it."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._objective = STEP_TIME

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """Print the study and the reason for its strategy."""
        self._objective = study.objective.expression
        self._say(
            "study_started",
            study_id=study_id,
            name=study.name,
            objective=study.objective.expression,
            more_objectives=[more.expression for more in study.more_objectives],
            limits=list(study.limits),
            strategy=study.strategy,
            why=strategy,
            trials=study.budget.trials,
        )

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """Print the author of the proposal."""
        self._say(
            "trial_started", ordinal=ordinal, author=policy.author, rationale=policy.rationale
        )

    def config_decided(self, ordinal: int, config: Config) -> None:
        """Print the configuration about to be launched."""
        self._say("config_decided", ordinal=ordinal, config=dict(config.values))

    def phase(self, name: str, ordinal: int | None) -> None:
        """Print the phase entered, and of which trial."""
        self._say("phase", phase=name, ordinal=ordinal)

    def trial_finished(self, trial: Trial, history: History) -> None:
        """Print the result."""
        best = history.best
        self._say(
            "trial_finished",
            **trial_facts(trial, trial_spread(trial, history)),
            best=best.ordinal if best is not None else None,
            words=trial_line(trial, history),
        )

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Print the standard deviation of a round's log ratio, and the ratio that is detectable."""
        ratio = detectable(noise, claim_rule(measure))
        self._say(
            "noise_measured",
            sd=noise.sd,
            freedom=noise.freedom,
            detectable=ratio,
            words=noise_words(noise, measure),
        )

    def repeat_finished(self, repeat: Repeat) -> None:
        """Print the outcome of a repeat launch."""
        self._say(
            "repeat_finished",
            purpose=repeat.purpose.value,
            ordinal=repeat.ordinal,
            series=repeat.series,
            round=repeat.round,
            **outcome_facts(repeat.outcome),
            words=repeat_line(repeat, self._objective),
        )

    def race_decided(self, race: Race) -> None:
        """Print the verdict on a challenger."""
        self._say("race_decided", **json.loads(to_json(race)), words=race_words(race))

    def nodes_held(self, node_s: float) -> None:
        """Print the node-hours."""
        self._say("nodes_held", node_hours=node_s / HOUR_S)

    def notice(self, words: str) -> None:
        """Print the notice."""
        self._say("notice", words=words)

    def _say(self, event: str, **facts: object) -> None:
        _print(self._out, json.dumps({"event": event, **facts}, allow_nan=False))


def _print(out: TextIO, line: str) -> None:
    """Print and flush; a closed pipe ends the search like Ctrl-C."""
    try:
        print(line, file=out, flush=True)
    except BrokenPipeError:
        raise KeyboardInterrupt from None


NARROW, WIDE = 100, 120
ACTIVITY_CHARS, CAUSE_CHARS = 400, 90
RESULT_CELLS, AUTHOR_CELLS, BUDGET_CELLS, LIVE_GAP = 14, 10, 6, 2
LOOK_EVERY_S = 1.0
LOG_LINES, LEAST_HEIGHT = 3, 24
"""Lines of the log of what runs, on a screen that has room for them."""
LEGEND = "* best so far   step: █ compute  ▒ exposed communication  · other and idle"


class LiveProgress:
    """Draws on a console from the start of a study until its context is left.

    `history` and `repeats` are what is already recorded; `running` returns the launches that run.
    """

    def __init__(
        self,
        console: Console,
        history: History,
        repeats: Sequence[Repeat] = (),
        running: Callable[[], Sequence[RunningLaunch]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._history = history
        self._repeats = tuple(repeats)
        self._recorded_repeat_count = len(repeats)
        self._study: Study | None = None
        self._running = running
        self._launches: Sequence[RunningLaunch] = ()
        self._looked_s = -LOOK_EVERY_S
        self._left: TimeLeft | None = None
        self._under_way: Mapping[int | None, tuple[str, str]] = {}
        """Phase and activity by ordinal, None for repeats. Replaced: another thread draws it."""
        self._clock = clock
        self._started_s = clock()
        self._node_s: float | None = None
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
        """Print what is searched."""
        self._study = study
        self._console.print(Text(f"study {study_id}: {study.name}", style="bold"))
        varied = f"; {VARIED_WORK}" if _varies_work(study) else ""
        self._console.print(Text(f"objective {objective_words(study)}; {strategy}{varied}\n"))
        if self._history:
            print_trials(self._console, self._history.trials, self._history)
        self._estimate()
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
        _, activity = self._under_way.get(ordinal, ("", ""))
        self._do(ordinal, name, activity)

    def trial_finished(self, trial: Trial, history: History) -> None:
        """Print the trial's row."""
        print_trials(self._console, (trial,), history)
        self._history = history
        self._over(trial.ordinal)
        self._estimate()

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Print how much equal launches differ, and what the search can detect."""
        self._console.print(Text(f"    noise: {noise_words(noise, measure)}", style="dim"))
        self._over(None)

    def repeat_finished(self, repeat: Repeat) -> None:
        """Show which launch was repeated."""
        self._repeats = (*self._repeats, repeat)
        self._estimate()
        which = f"trial {repeat.ordinal} in round {repeat.round + 1}, {PURPOSES[repeat.purpose]}"
        self._do(None, "", which)

    def race_decided(self, race: Race) -> None:
        """Print which trial leads after a comparison."""
        self._console.print(Text(f"    compared: {race_words(race)}", style="dim"))
        if race.comparison.verdict is Verdict.FAST:
            self._history = replace(self._history, incumbent=race.challenger)
        self._over(None)

    def nodes_held(self, node_s: float) -> None:
        """Show it next to the time."""
        self._node_s = node_s

    def notice(self, words: str) -> None:
        """Print it so that it stands out among the trials."""
        self._console.print(Text(f"    NOTICE: {words}", style="bold yellow"))

    def footer(self) -> RenderableType:
        """Running launches and the used budget."""
        self._look()
        footer = RichTable.grid(padding=(0, 1, 0, 0))
        lines = [
            _doing_line(ordinal, phase, self._how_far(ordinal), activity)
            for ordinal, (phase, activity) in self._under_way.items()
        ]
        for place, line in enumerate(lines or ["proposing"]):
            footer.add_row(self._spinner if place == 0 else "", _on_one_line(line))
        if self._launches and self._console.height >= LEAST_HEIGHT:
            for line in self._launches[0].log[-LOG_LINES:]:
                text = Text(one_line(line, ACTIVITY_CHARS), "dim", no_wrap=True)
                footer.add_row("", text)
        if self._study is not None:
            used, total = self._history.launched_count, self._study.budget.trials
            bar = ProgressBar(total=total, completed=min(used, total), width=BUDGET_CELLS)
            footer.add_row(bar, _on_one_line(", ".join(self._facts(used, total))))
        if self._left is not None:
            words = f"{left_words(self._left)} left: {left_basis(self._left)}"
            footer.add_row("", _on_one_line(words))
        return Group("", footer)

    def _do(self, ordinal: int | None, phase: str, activity: str) -> None:
        self._under_way = {**self._under_way, ordinal: (phase, activity)}

    def _over(self, ordinal: int | None) -> None:
        self._under_way = {n: doing for n, doing in self._under_way.items() if n != ordinal}

    def _estimate(self) -> None:
        if self._study is not None:
            self._left = time_left(self._study, self._history, self._repeats)

    def _look(self) -> None:
        """Read how far the launches are, if the last look was long ago."""
        if self._clock() - self._looked_s >= LOOK_EVERY_S:
            self._launches, self._looked_s = self._running(), self._clock()

    def _how_far(self, ordinal: int | None) -> str:
        """Step and time of the launch of a trial; of repeats that run together, of the first."""
        if self._study is None:
            return ""
        alone = len(self._under_way) == 1
        fits = {ordinal, None} if alone else {ordinal}
        found = next((each for each in self._launches if each.ordinal in fits), None)
        return "" if found is None else launch_words(found, self._study)

    def _facts(self, used: int, total: int) -> list[str]:
        """Budget used, the best so far, and failures."""
        minutes, seconds = divmod(int(self._clock() - self._started_s), 60)
        count = len(self._repeats) - self._recorded_repeat_count
        repeats = f", {format_count(count, 'repeat')}" if count else ""
        facts = [f"{used} of {total} trials{repeats}", f"{minutes}:{seconds:02} min"]
        if self._node_s is not None and self._study is not None:
            facts.append(node_hours_words(self._node_s, self._study))
        best = self._history.best
        if best is not None and best.score is not None:
            facts.append(f"best {result_words(best, self._history)} in trial {best.ordinal}")
            facts += remarks(best)
        kinds = Counter(t.outcome.kind for t in self._history if isinstance(t.outcome, Failed))
        return facts + [f"{count} {kind}" for kind, count in kinds.most_common()]


def _doing_line(ordinal: int | None, phase: str, how_far: str, activity: str) -> str:
    """What is under way, in which phase, and how far it is."""
    task = "repeating" if ordinal is None else f"trial {ordinal}"
    return " · ".join(filter(None, (task, phase, how_far, one_line(activity, ACTIVITY_CHARS))))


def print_trials(console: Console, trials: Sequence[Trial], history: History) -> None:
    """Print rows for trials of a history, under headings if the first trial is among them.

    A configuration is shown by its difference to the first one. Columns depend on the width of
    the console only, so that rows printed one after the other line up.
    """
    width = console.width
    is_first = trials[:1] == history.trials[:1]
    table = RichTable(
        box=None, padding=(0, LIVE_GAP, 0, 0), pad_edge=False, show_header=is_first, expand=True
    )
    table.add_column("#", width=3, justify="right")
    if width >= NARROW:
        table.add_column("by", width=AUTHOR_CELLS, no_wrap=True)
    table.add_column("configuration", ratio=1, min_width=24, overflow="fold")
    table.add_column("result", width=RESULT_CELLS, no_wrap=True)
    table.add_column("to seed", width=7, justify="right", no_wrap=True)
    shares = len(" 100 100 100 %") if width >= WIDE else 0
    table.add_column("step", width=_bar_cells(width) + shares, no_wrap=True)
    for trial in trials:
        table.add_row(*_cells(trial, history, width))
    if is_first:
        console.print(Text(LEGEND, style="dim"))
    console.print(table)


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
        cause = Text(one_line(trial.outcome.message, CAUSE_CHARS), style="red")
        about = Group(Text(words), cause) if words else cause
        return (*head, about, Text(trial.outcome.kind, style="red"), "", "")
    found, unit = trial_spread(trial, history), trial.score.unit if trial.score else ""
    result = Text(
        "" if found is None else f"{format_number(found.centre)} {unit}".rstrip(), style=style
    )
    bar = _bar(trial.outcome.breakdown, width) if trial.outcome.breakdown else Text("")
    about = Text(words, style=style)
    several = [] if found is None or found.launch_count == 1 else [reached_words(found, unit)]
    for caveat in (*several, *remarks(trial)):
        about.append(f"\n{caveat}", style="dim")
    return (*head, about, result, Text(_to_seed(trial, history)), bar)


def _settings(config: Config, history: History) -> str:
    """The difference to the first configuration decided, which is shown in full."""
    base = next((trial.config for trial in history if trial.config is not None), config)
    return str(config) if config == base else format_difference(config, base)


def _to_seed(trial: Trial, history: History) -> str:
    """How many times better than the seed, where both have a positive score."""
    seed = history.trials[0]
    own, base = trial_spread(trial, history), trial_spread(seed, history)
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
        shares = " ".join(f"{100 * seconds / total_s:.0f}" for seconds, _, _ in parts)
        bar.append(f" {shares} %", style="dim")
    return bar


def _on_one_line(words: str) -> Text:
    return Text(words, no_wrap=True, overflow="ellipsis")
