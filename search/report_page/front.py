"""Which trials no other beats, in several objectives or in what they take."""

from collections.abc import Sequence

from evaluator.objective import Scoring
from evaluator.timing.spread import Spread
from records.trial import Trial
from search.charts.scatter import Pair, Reach, front_chart
from search.front import Member, own_values, unbeaten
from search.report_page.blocks import Cell, Chart, Row, Section, Table, words_row
from search.report_page.cells import spread_cell
from search.report_page.course import objective_label, trial_tip
from search.report_page.seen import Seen
from search.report_page.thinning import left_out_words, thinned
from search.words.config import flags
from search.words.trial import number

LEAST_POINTS = 3
OTHER_AXES = ("peak_memory", "rank_count")
"""What a trial takes, against which its objective is drawn where there is only one."""


def front(seen: Seen) -> Section | None:
    """The front of several objectives, or of the objective against what trials take."""
    if seen.scoring.more:
        return _asked_front(seen)
    for name in OTHER_AXES:
        section = _traded(seen, name)
        if section is not None:
            return section
    return None


def _asked_front(seen: Seen) -> Section | None:
    members = {member.ordinal: member for member in seen.finding.front}
    told = [(trial, own_values(trial, seen.scoring)) for trial in seen.history.measured]
    measured = [(trial, values) for trial, values in told if values is not None]
    if not members or not measured:
        return None
    shown = thinned(measured, lambda one: one[0].ordinal in members)
    main, *others = seen.scoring.objectives
    charts = [
        Chart(
            drawn=front_chart(
                [
                    _pair(seen, trial, values, members.get(trial.ordinal), place)
                    for trial, values in shown
                ],
                x_label=_axis(main),
                y_label=_axis(other),
                line=len(others) == 1,
            ),
            about=f"{objective_label(other)} against {objective_label(main)}",
        )
        for place, other in enumerate(others, start=1)
    ]
    return Section(
        name="front",
        heading="Pareto front",
        lead=f"No trial beats these {len(members)} in all objectives at once: which of them to "
        f"take is a choice, not a measurement.{left_out_words(len(shown), len(measured))}",
        blocks=(*charts, _front_table(seen, seen.finding.front)),
    )


def _pair(
    seen: Seen, trial: Trial, values: Sequence[float], member: Member | None, place: int
) -> Pair:
    reached = seen.reached(trial)
    x, y = values[0] if reached is None else reached.centre, values[place]
    ends = [Reach(centre=x), Reach(centre=y)]
    if member is not None:
        ends = [_reach(member.reached[0].value), _reach(member.reached[place].value)]
    return Pair(
        name=str(trial.ordinal),
        x=ends[0],
        y=ends[1],
        on_front=member is not None,
        is_limited=trial.score is not None and bool(trial.score.broken),
        tip=trial_tip(trial, seen.history),
    )


def _reach(value: Spread) -> Reach:
    return Reach(centre=value.centre, low=value.low, high=value.high)


def _front_table(seen: Seen, members: Sequence[Member]) -> Table:
    rows: list[Row] = []
    for member in members:
        trial = seen.history.find(member.ordinal)
        config = "" if trial is None or trial.config is None else flags(trial.config)
        reached = (spread_cell(each.value) for each in member.reached)
        name = Cell(text=f"trial {member.ordinal}")
        rows.append(Row(cells=(name, *reached, Cell(text=config, is_code=True))))
    names = map(objective_label, seen.scoring.objectives)
    about = "The front, best in the main objective first"
    return Table(about=about, headings=("trial", *names, "sets"), rows=tuple(rows))


def _traded(seen: Seen, name: str) -> Section | None:
    """The objective against a metric; None where the best takes least of it, or all the same."""
    if seen.study.objective.expression == name:
        return None
    pairs, label = _taken(seen, name)
    kept = [pair for pair in pairs if pair.on_front]
    if len(pairs) < LEAST_POINTS or len(kept) < 2:
        return None
    rows = tuple(
        words_row(f"trial {pair.name}", number(pair.x.centre), number(pair.y.centre))
        for pair in sorted(kept, key=lambda pair: pair.x.centre)
    )
    objective = objective_label(seen.scoring)
    shown = thinned(pairs, lambda pair: pair.on_front)
    chart = front_chart(shown, x_label=f"{label}, lower is better", y_label=_axis(seen.scoring))
    return Section(
        name="front",
        heading=f"What {name} buys",
        lead=f"No other beats the named ones in {name} and the "
        "objective at once, so one of them may do where less is at hand."
        + left_out_words(len(shown), len(pairs)),
        blocks=(
            Chart(drawn=chart, about=f"{objective} against {name}"),
            Table(
                about=f"What is reached with how much {name}",
                headings=("trial", label, objective),
                rows=rows,
                numeric=frozenset({1, 2}),
            ),
        ),
    )


def _taken(seen: Seen, name: str) -> tuple[list[Pair], str]:
    """Every trial by a metric and the objective, and what the metric is called with its unit."""
    found = [
        (trial, trial.score, reached.centre, metric)
        for trial in seen.history.measured
        if trial.score is not None
        and (reached := seen.reached(trial)) is not None
        and (metric := seen.metric(trial, name)) is not None
    ]
    sign = seen.scoring.sign
    costs = {trial.ordinal: (sign * value, metric.value) for trial, _, value, metric in found}
    kept = set(unbeaten(costs))
    unit = found[0][3].unit if found else ""
    size, told = (2**20, "MiB") if unit == "bytes" else (1, unit)
    label = f"{name} ({told})" if told else name
    pairs = [
        Pair(
            name=str(trial.ordinal),
            x=Reach(centre=metric.value / size),
            y=Reach(centre=value),
            on_front=trial.ordinal in kept,
            is_limited=bool(score.broken),
            tip=f"{trial_tip(trial, seen.history)}; {label} {number(metric.value / size)}",
        )
        for trial, score, value, metric in found
    ]
    return pairs, label


def _axis(scoring: Scoring) -> str:
    better = "lower" if scoring.lower_is_better else "higher"
    return f"{objective_label(scoring)}, {better} is better"
