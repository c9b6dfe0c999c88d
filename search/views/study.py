"""Describe what a study searches for and what it found: objectives, races, contexts, model use."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evaluator.metrics.base import Metric
from evaluator.objective import Scoring, scoring_of
from evaluator.timing.decision import Noise, Verdict, detectable
from records.llm_exchange import SUBMITTED, ModelUse
from records.study import Context, Llm, Measure, Study, choices_of, list_words
from records.trial import (
    Config,
    ContextOutcome,
    Failed,
    History,
    Outcome,
    Purpose,
    Score,
    Trial,
    outcome_in,
)
from search.loop.budget import HOUR_S, cost_usd, nodes_usd
from search.loop.inert import InertKnob
from search.loop.leader import FrontMember, ObjectiveValue, Race, claim_rule
from search.loop.running import RunningLaunch, TimeLeft, most_steps
from search.loop.study_result import ContextResult
from search.study.spaces import parts, study_in
from search.views.format import (
    centre_words,
    comparison_words,
    format_count,
    format_elapsed,
    format_flags,
    format_number,
    format_percent,
    format_setting,
    one_line,
    ordinals_words,
    reached_words,
    score_words,
)

LIMIT_CHARS = 200


def objective_words(study: Study) -> str:
    """All objectives and limits: `step_time and rank_count, with peak_memory < 30 GiB`."""
    objectives = (study.objective, *study.more_objectives)
    words = " and ".join(objective.expression for objective in objectives)
    return f"{words}, with {', '.join(study.limits)}" if study.limits else words


def baseline_words(study: Study, history: History) -> str | None:
    """Which trial stands for the seed in objectives that name it; None for the seed itself."""
    first = next(iter(history.measured), None)
    objectives = (each.expression for each in (study.objective, *study.more_objectives))
    names_seed = any(re.search(r"@\s*seed\b", text) for text in (*objectives, *study.limits))
    if first is None or first.ordinal == 0 or not names_seed:
        return None
    return f"trial {first.ordinal}, the first that was measured, as the seed failed"


def limit_words(history: History) -> str | None:
    """How many trials break a limit, and how the first does; None where none breaks any."""
    broken = [t for t in history.measured if t.score is not None and t.score.broken]
    if not broken:
        return None
    first = broken[0]
    how = one_line("; ".join(first.score.broken if first.score else ()), LIMIT_CHARS)
    count = f"{len(broken)} of {len(history.measured)} measured trials break a limit"
    return f"{count}, so they cannot be the best; trial {first.ordinal}: {how}"


def front_words(front: tuple[FrontMember, ...], history: History) -> Iterator[str]:
    """Each member of a front on a line: what it reached, and what it sets."""
    for member in front:
        trial = history.find(member.ordinal)
        config = None if trial is None else trial.config
        reached = ", ".join(_reached_words(each) for each in member.reached)
        flags = format_flags(config) if config else ""
        yield f"trial {member.ordinal}: {reached}: {flags}".rstrip(": ")


def _reached_words(reached: ObjectiveValue) -> str:
    value, unit = reached.value, reached.unit
    is_exact = value.low is not None and value.low == value.high
    words = centre_words(value, unit) if is_exact else reached_words(value, unit)
    return f"{reached.objective} {words}"


PURPOSES: Mapping[Purpose, str] = {
    Purpose.SELF_TEST: "to measure noise",
    Purpose.RACE: "to compare",
    Purpose.HALVING: "to narrow down",
    Purpose.CONFIRM: "to confirm",
    Purpose.HELD_OUT: "in held-out contexts",
}


def inert_words(knob: InertKnob) -> str:
    """Which values of a knob did the same, and how that is known."""
    values = ", ".join(map(format_setting, knob.values))
    return (
        f"{knob.name} ({values}) changed nothing: trials {ordinals_words(knob.ordinals)} ran equal "
        "kernels and collectives with equal losses, and their times are not shown to differ"
    )


REMEDY = "a quieter machine or more rounds (max_confirm_rounds) would help"
USELESS_RATIO = 10.0
"""Configurations that differ by more need no statistics."""


def noise_words(noise: Noise, measure: Measure) -> str:
    """How much equal launches differ, and what difference the study can detect."""
    rule = claim_rule(measure)
    words = f"rounds of equal launches differ by {format_percent(noise.sd)} (standard deviation)"
    ratio = detectable(noise, rule)
    if ratio is None or ratio > USELESS_RATIO:
        rounds = format_count(rule.max_rounds, "round")
        return f"{words}; {rounds} cannot show a difference; {REMEDY}"
    shown = format_count(rule.max_rounds, "round shows", "rounds show")
    if ratio > 2:
        return f"{words}; {shown} no difference below {ratio:.1f}x; {REMEDY}"
    return f"{words}; {shown} differences from {format_percent(ratio - 1)}"


def race_words(race: Race) -> str:
    """The result of a challenger against the leader."""
    words = comparison_words(race.comparison)
    stayed = "" if race.comparison.verdict is Verdict.FAST else f", so trial {race.incumbent} leads"
    return f"trial {race.challenger} against trial {race.incumbent}: {words}{stayed}"


CAUSE_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class InContextResult:
    """What a trial scored in one context, over what the seed scored there, or how it failed."""

    name: str
    score: Score | None
    ratio_to_seed: float | None
    failure: str | None

    @property
    def words(self) -> str:
        """The same as a sentence."""
        if self.score is None:
            return self.failure or "it has no score"
        words = score_words(self.score)
        if self.ratio_to_seed is None:
            return words
        return f"{words}, {self.ratio_to_seed:.3f} times the seed's"


def results_in_contexts(
    trial: Trial, history: History, study: Study
) -> tuple[InContextResult, ...]:
    """How a trial did in each context that it was launched in; nothing where there is only one."""
    scoring = scoring_of(study).over(history)
    seed = history.trials[0].outcome
    each = trial.outcome.contexts
    return tuple(_result(one, scoring.inside(one.name), seed) for one in each)


def settings_words(config: Config, study: Study) -> str:
    """What a trial sets, as command-line arguments; in each context that is launched."""
    own, *others = parts(study, config)
    settings = arguments_text(study, own.config)
    for part in others:
        same = part.config == own.config
        there = "the same" if same else arguments_text(part.study, part.config)
        settings += f"; in {part.name}: {there}"
    return settings


def context_finding_words(found: ContextResult) -> tuple[str, str]:
    """A label and what it says about the winner in one context, or over several."""
    alone = " (held out)" if found.held_out and found.context_count == 1 else ""
    label = f"against the seed in {found.name}{alone}"
    if found.against_seed is None:
        return label, "not compared, there were no launches left for it"
    return label, comparison_words(found.against_seed)


def other_choices(study: Study, context: Context) -> list[str]:
    """The knobs that have other choices in a context than in the study itself, as text."""
    own = {dimension.name: choices_of(dimension) for dimension in study.space.dimensions}
    return [
        f"{dimension.name} in {list_words(choices_of(dimension))}"
        for dimension in study_in(study, context).space.dimensions
        if choices_of(dimension) != own.get(dimension.name)
    ]


def _result(one: ContextOutcome, scoring: Scoring, seed: Outcome) -> InContextResult:
    score = _score(one.outcome, scoring)
    if isinstance(score, Failed):
        why = one_line(str(score), CAUSE_CHARS)
        return InContextResult(name=one.name, score=None, ratio_to_seed=None, failure=why)
    first = outcome_in(seed, one.name)
    base = None if first is None else _score(first, scoring)
    ratio = score.value / base.value if isinstance(base, Score) and base.value else None
    return InContextResult(name=one.name, score=score, ratio_to_seed=ratio, failure=None)


def _score(outcome: Outcome, scoring: Scoring) -> Score | Failed:
    return (
        outcome if isinstance(outcome, Failed) else scoring.score(outcome.metrics, outcome.absent)
    )


def arguments_text(study: Study, config: Config) -> str:
    """A configuration as the command of its study takes it, or as flags."""
    if study.command is not None:
        from evaluator.recipes.catalog import recipe_of
        from evaluator.recipes.command import CommandRecipe  # brings what estimates a step

        recipe = recipe_of(study)
        words = recipe.knob_arguments(study, config) if isinstance(recipe, CommandRecipe) else ()
        if words:
            return shlex.join(words)
    return format_flags(config)


def config_text(form: Literal["json", "env", "args"], study: Study, config: Config) -> str:
    """A configuration as a JSON object, as KEY=value lines or as command-line arguments.

    Variables are named as the user's script expects them.
    """
    match form:
        case "json":
            return json.dumps(dict(config.values), indent=1)
        case "args":
            return arguments_text(study, config)
        case "env" if study.command is None:
            found = {knob.upper(): format_setting(value) for knob, value in config.values.items()}
        case "env":
            from evaluator.recipes.command import settings  # brings what estimates a step

            texts = settings(study, study.command, config)
            found = {name: shlex.quote(text) for name, text in texts.items()}
    return "\n".join(f"{name}={text}" for name, text in found.items())


def launch_words(launch: RunningLaunch, study: Study) -> str:
    """How far a launch is: `step 12 of at most 23, 31 s`; its phase is shown before."""
    step, most, measure = launch.step, most_steps(study), study.measure
    words = "" if step is None else f"step {step}"
    if step is not None and most is not None and step <= most:
        fixed = measure.max_timed_steps <= measure.timed_steps or study.command is not None
        words += f" of {most}" if fixed else f" of at most {most}"
    return ", ".join(filter(None, (words, format_elapsed(launch.elapsed_s))))


def left_words(left: TimeLeft) -> str:
    """How long a search still takes: `about 2 min 10 s to 12 min`."""
    least, most = (_rounded(each) for each in (left.least_s, left.most_s))
    if not left.most_s:
        return "no launch"
    if left.least_s == left.most_s:
        return f"about {most}"
    return f"about {least} to {most}" if left.least_s else f"up to about {most}"


def _rounded(seconds: float) -> str:
    """A time that is known roughly."""
    unit_s = 60 if seconds >= 600 else 10 if seconds >= 60 else 1
    return format_elapsed(unit_s * max(1, round(seconds / unit_s)))


def left_basis(left: TimeLeft) -> str:
    """What that is based on."""
    each = format_elapsed(left.launch_s) if left.launch_s >= 1 else f"{left.launch_s:.1g} s"
    trials = format_count(left.trials, "trial") if left.trials else ""
    repeats = f"up to {format_count(left.most_repeats, 'repeat')}" if left.most_repeats else ""
    mean_of = format_count(left.launch_count, "launch", "launches")
    launches = " and ".join(filter(None, (trials, repeats))) or "none"
    return f"{launches} at {each} per launch, the mean of {mean_of} so far"


def node_hours_words(node_s: float, study: Study) -> str:
    """How long nodes were held, and their price: `3.2 of 10 node-hours, 89.6 USD`."""
    most = study.budget.max_node_hours
    limit = "" if most is None else f" of {most:g}"
    usd = nodes_usd(node_s, study.environment)
    price = "" if usd is None else f", {format_number(usd)} USD"
    return f"{format_number(node_s / HOUR_S)}{limit} node-hours{price}"


RESULT_CHARS = 500


def use_words(use: ModelUse, llm: Llm) -> str:
    """Turns, tokens and money of one model, and why its last turn brought no policy if it did not.

    `llm` is the study's, whose price counts.
    """
    usage, cost = use.usage, cost_usd(use.usage, use.model, llm)
    read = usage.cache_read_tokens
    into = usage.input_tokens + usage.cache_write_tokens + read
    money = "price not known" if cost is None else f"{cost:.4g} USD"
    last = "" if use.last_result == SUBMITTED else f"; the last turn: {use.last_result}"
    return (
        f"{use.model}: policies in {use.policy_count} of {format_count(use.turn_count, 'turn')}, "
        f"{format_count(use.request_count, 'request')}; {usage.tokens} tokens ({into} in, of them "
        f"{read} from the cache, {usage.output_tokens} out), {money}{one_line(last, RESULT_CHARS)}"
    )


def use_facts(uses: Sequence[ModelUse], llm: Llm) -> list[dict[str, object]]:
    """The same for programs; a cost that is not known is null."""
    return [
        {
            "model": use.model,
            "turns": use.turn_count,
            "turns_with_policies": use.policy_count,
            "requests": use.request_count,
            "input_tokens": use.usage.input_tokens,
            "output_tokens": use.usage.output_tokens,
            "cache_read_tokens": use.usage.cache_read_tokens,
            "cache_write_tokens": use.usage.cache_write_tokens,
            "cost_usd": cost_usd(use.usage, use.model, llm),
            "last_result": use.last_result,
        }
        for use in uses
    ]


def definition_facts(of: Metric) -> dict[str, object]:
    """What a metric is called, what it is in, and what it means."""
    return {
        "name": of.name,
        "label": of.label,
        "unit": of.unit,
        "better": of.better,
        "sources": sorted(of.sources),
        "version": of.version,
        "description": of.description,
        "differs": of.differs,
    }
