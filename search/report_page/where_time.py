"""Where the steps of each trial went."""

from collections.abc import Sequence

from records.trial import Breakdown, Measured, Trial
from search.charts.bars import Bar, bar_chart
from search.charts.frame import Key
from search.report_page.blocks import Cell, Chart, Row, Section, Table
from search.report_page.course import TIP_CHARS
from search.report_page.seen import Seen
from search.words.trial import number, one_line, shares

MOST_BARS = 40
KEYS = (
    Key(name="compute", kind="part0", shape="box"),
    Key(name="exposed communication", kind="part1", shape="box"),
    Key(name="other", kind="part2", shape="box"),
    Key(name="idle", kind="part3", shape="box"),
)
HEADINGS = ("trial", *(f"{key.name}, ms" for key in KEYS), "hidden communication, ms")


def where_time_went(seen: Seen) -> Section | None:
    """The profiled steps of the trials, part by part; None where none was profiled."""
    split = [
        (trial, trial.outcome.breakdown)
        for trial in seen.history
        if isinstance(trial.outcome, Measured) and trial.outcome.breakdown is not None
    ]
    if not split:
        return None
    shown = _shown(seen, split)
    left_out = len(split) - len(shown)
    more = f" The best {len(shown)} of {len(split)} trials are shown." if left_out else ""
    best = None if seen.best is None else seen.best.ordinal
    chart = time_chart(shown, best)
    return Section(
        name="time",
        heading="Where time went",
        lead="A profiled step of each trial, at the mean over ranks; communication that runs "
        "beside compute costs nothing and is hatched." + more,
        blocks=(
            Chart(
                drawn=chart,
                about="Parts of a profiled step, which the profiler itself makes longer",
                letters="\n".join(f"{trial.ordinal:>4} {shares(parts)}" for trial, parts in shown),
            ),
            Table(
                about="The same in milliseconds",
                headings=HEADINGS,
                rows=tuple(_row(trial, parts, seen) for trial, parts in shown),
                numeric=frozenset(range(1, len(HEADINGS))),
                is_long=True,
            ),
        ),
    )


def _shown(
    seen: Seen, split: Sequence[tuple[Trial, Breakdown]]
) -> Sequence[tuple[Trial, Breakdown]]:
    """The best, with the seed, in the order of trials."""
    if len(split) <= MOST_BARS:
        return split
    place = {trial.ordinal: place for place, trial in enumerate(seen.history.ranked)}
    ranked = sorted(split, key=lambda one: place.get(one[0].ordinal, len(split)))
    kept = {0} | {trial.ordinal for trial, _ in ranked[:MOST_BARS]}
    return [one for one in split if one[0].ordinal in kept]


def _parts_ms(parts: Breakdown) -> tuple[float, ...]:
    seconds = (
        parts.compute_s,
        parts.exposed_communication_s,
        parts.other_s,
        parts.idle_s,
        parts.hidden_communication_s,
    )
    return tuple(max(0.0, each) * 1e3 for each in seconds)


def time_chart(split: Sequence[tuple[Trial, Breakdown]], best: int | None) -> str:
    """A bar for each trial, made of the parts of its profiled step; `best` is marked."""
    return bar_chart(
        [_bar(trial, parts, best=trial.ordinal == best) for trial, parts in split],
        KEYS,
        title="Where the step of each trial went",
        label="ms per profiled step",
        hatched="hidden communication",
    )


def _bar(trial: Trial, parts: Breakdown, *, best: bool) -> Bar:
    *own, hidden = _parts_ms(parts)
    return Bar(
        name=f"trial {trial.ordinal}{', best' if best else ''}",
        parts=tuple(own),
        words=f"{number(sum(own))} ms",
        tip=one_line(f"trial {trial.ordinal}: {trial.config}; {shares(parts)}", TIP_CHARS),
        within=min(hidden, own[0]),
        is_best=best,
    )


def _row(trial: Trial, parts: Breakdown, seen: Seen) -> Row:
    cells = [Cell(text=number(each), value=each) for each in _parts_ms(parts)]
    name = Cell(text=str(trial.ordinal), value=trial.ordinal)
    return Row(cells=(name, *cells), tone="best" if trial is seen.best else "")
