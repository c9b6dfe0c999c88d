"""Launches that were made again, in words: what for, and what they told."""

from collections.abc import Mapping

from evaluator.timing.noise import Noise
from evaluator.timing.paired import detectable
from evaluator.timing.verdict import Verdict
from records.study import Measure
from records.trial import Purpose
from search.rules import claim_rule
from search.standing import Race
from search.words.comparison import comparison_words, percent

PURPOSES: Mapping[Purpose, str] = {
    Purpose.SELF_TEST: "to learn the noise",
    Purpose.RACE: "to race",
    Purpose.HALVING: "to thin out",
    Purpose.CONFIRM: "to confirm",
    Purpose.HELD_OUT: "in what was held out",
}


def noise_words(noise: Noise, measure: Measure) -> str:
    """How much equal launches differ, and what that lets the study see."""
    rule = claim_rule(measure)
    told = f"rounds of equal launches differ by {percent(noise.sd)} (standard deviation)"
    ratio = detectable(noise, rule)
    if ratio is None:
        return told
    return f"{told}; {rule.max_rounds} rounds show differences from {percent(ratio - 1)}"


def race_words(race: Race) -> str:
    """How a challenger did against the trial that led."""
    words = comparison_words(race.comparison)
    stayed = "" if race.comparison.verdict is Verdict.FAST else f", so trial {race.incumbent} leads"
    return f"trial {race.challenger} against trial {race.incumbent}: {words}{stayed}"
