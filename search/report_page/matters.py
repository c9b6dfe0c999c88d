"""Which knobs matter, as far as so few trials can tell."""

from collections.abc import Sequence

from search.charts.bars import Bar, bar_chart
from search.charts.frame import Key
from search.effects import dead_knobs
from search.importance import LEAST_CONFIGS, Importance, KnobEffect, importance
from search.report_page.blocks import Block, Chart, Facts, Section, Table, words_row
from search.report_page.seen import Seen

BAR_CHARS = 30
POOR = 0.25
"""Share of the variation below which the model's word is not worth a chart."""


def matters(seen: Seen) -> Section | None:
    """Which knobs matter, or that too little was measured to say; None without a space."""
    if seen.space is None or not seen.history.measured:
        return None
    found = importance(seen.space, seen.history, seen.scoring.sign)
    blocks: list[Block] = list(_dead(seen))
    if found is None or not found.effects:
        lead = (
            f"Too few trials to tell which knobs matter: it takes {LEAST_CONFIGS} configurations "
            "with a result above zero, and knobs that differ between them."
        )
    elif found.explained < POOR:
        lead = (
            f"The {found.config_count} measured configurations do not tell which knobs matter: of "
            f"one that is left out, a model of the others foretells {_percent(found)} of the "
            "variation."
        )
    else:
        lead = (
            "How much worse the worst choice of a knob is than its best, all else equal, by a "
            f"Gaussian process over the {found.config_count} measured configurations, averaged "
            f"over them; of one that is left out it foretells {_percent(found)} of the variation. "
            "It is a guide to what to look at, not a measurement."
        )
        blocks = [_bars(found.effects), _table(found.effects), *blocks]
    return Section(name="importance", heading="Which knobs matter", lead=lead, blocks=tuple(blocks))


def _percent(found: Importance) -> str:
    return f"{max(0.0, found.explained):.0%}"


def _dead(seen: Seen) -> list[Block]:
    if seen.space is None:
        return []
    found = dead_knobs(seen.space, seen.history)
    lines = tuple(
        (
            "no difference seen",
            f"{knob.name}: {knob.pair_count} pairs of trials differ in it alone, by at most "
            f"{knob.largest_share:.1%}",
        )
        for knob in found
    )
    return [Facts(lines=lines)] if lines else []


def _bars(effects: Sequence[KnobEffect]) -> Chart:
    most = max((effect.ratio - 1 for effect in effects), default=0.0)
    bars = [
        Bar(
            name=effect.name,
            parts=(100 * (effect.ratio - 1),),
            words=_worse(effect),
            tip=f"{effect.name}: {effect.best} is best, {effect.worst} {_worse(effect)} worse",
        )
        for effect in effects
    ]
    letters = (
        f"{effect.name:<24.24} "
        + ("#" * round(BAR_CHARS * ((effect.ratio - 1) / most if most else 0))).ljust(BAR_CHARS)
        + f" {_worse(effect)}"
        for effect in effects
    )
    label = "how much worse the worst choice is than the best, in %"
    key = Key(name="", kind="part0", shape="box")
    return Chart(
        drawn=bar_chart(bars, [key], title="Which knobs matter", label=label),
        about="How much worse the worst choice of a knob is",
        letters="\n".join(letters),
    )


def _table(effects: Sequence[KnobEffect]) -> Table:
    rows = (
        words_row(each.name, _worse(each), str(each.best), str(each.worst), str(each.config_count))
        for each in effects
    )
    return Table(
        about="The same as a table, with the choices it is about",
        headings=("knob", "effect", "best choice", "worst choice", "configurations"),
        rows=tuple(rows),
        numeric=frozenset({1, 4}),
    )


def _worse(effect: KnobEffect) -> str:
    return f"{100 * (effect.ratio - 1):.3g} %"
