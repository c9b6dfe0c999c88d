"""What is wrong in a history that another tool recorded: unequal work, luck, how it ended."""

import ast
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from statistics import median
from typing import Final, TypeAlias

from evaluator.metrics.base import PUBLISHED_SCORE
from evaluator.objective import PER_TOKEN, Scoring, readings, scoring_of
from records.expression import Expression, ExpressionError, Rule, facts, parse
from records.study import MIN_TIMED_STEPS, Study
from records.trial import Config, Failed, FailureKind, History, Measured, Repeat, Trial
from search.report.data import listed
from search.views.format import format_count, format_number, one_line

Said: TypeAlias = tuple[str, tuple[int, ...]]
"""What a check found, in a sentence or two, and the trials that it is about."""


# Not slotted: what several checks share is computed once, by the first that asks.
@dataclass(frozen=True, kw_only=True)
class AuditedHistory:
    """A study with its trials and their further launches."""

    study: Study
    history: History
    repeats: Sequence[Repeat]

    @cached_property
    def scoring(self) -> Scoring:
        """How the study scores a trial, over its history."""
        return scoring_of(self.study).over(self.history)

    @cached_property
    def best(self) -> Trial | None:
        """The best trial; None where nothing was measured."""
        return self.history.best

    @property
    def dead_knobs(self) -> tuple[str, ...]:
        """Knobs that had no effect, whatever they were set to."""
        return () if self.study.origin is None else self.study.origin.dead_knobs

    def live(self, config: Config) -> Config:
        """The configuration without knobs that had no effect."""
        kept = {knob: v for knob, v in config.values.items() if knob not in self.dead_knobs}
        return Config(kept)

    @cached_property
    def alike(self) -> Mapping[Config, tuple[Trial, ...]]:
        """Admissible trials by what they effectively set."""
        found: dict[Config, list[Trial]] = defaultdict(list)
        for trial in self.history.admissible:
            if trial.config is not None:
                found[self.live(trial.config)].append(trial)
        return {config: tuple(trials) for config, trials in found.items()}

    @cached_property
    def noise(self) -> float | None:
        """Standard deviation of the logarithm of results of equal settings; None if unknown."""
        squares, freedom = 0.0, 0
        for trials in self.alike.values():
            values = [value(trial) for trial in trials]
            if len(values) > 1 and min(values) > 0:
                logs = [math.log(one) for one in values]
                squares += statistics.variance(logs) * (len(logs) - 1)
                freedom += len(logs) - 1
        return math.sqrt(squares / freedom) if freedom else None

    @cached_property
    def unrepeated_best(self) -> tuple[Trial, tuple[Trial, ...]] | None:
        """The best and the trials of its settings, where it rests on the times of a record alone.

        None where launches of ours stand behind it.
        """
        best = self.best
        if best is None or best.config is None or not isinstance(best.outcome, Measured):
            return None
        timed = any(one.slowest_rank_s for one in best.outcome.measurements)
        repeated = any(repeat.ordinal == best.ordinal for repeat in self.repeats)
        if not timed or not is_imported(best) or repeated:
            return None
        return best, self.alike[self.live(best.config)]

    def failures(self, kind: FailureKind) -> tuple[int, ...]:
        """Ordinals of the failures of one kind, where another tool counted them as results."""
        if not self.study.searched_elsewhere:
            return ()
        failed = ((t.ordinal, t.outcome) for t in self.history)
        return tuple(n for n, one in failed if isinstance(one, Failed) and one.kind is kind)


def value(trial: Trial) -> float:
    """What the objective is for a measured trial."""
    if trial.score is None:
        raise ValueError(f"trial {trial.ordinal} has no score")
    return trial.score.value


def metric_of(trial: Trial, name: str) -> float | None:
    """A metric of a trial, if it was measured and tells it."""
    return trial.outcome.metric(name) if isinstance(trial.outcome, Measured) else None


def is_imported(trial: Trial) -> bool:
    """Whether all that is known of a trial's time is one number of a record."""
    return isinstance(trial.outcome, Measured) and any(
        measurement.imported for measurement in trial.outcome.measurements
    )


CAUSE_CHARS = 120
LEAST_TRIALS = 3


def infrastructure(seen: AuditedHistory) -> Said | None:
    """Failures of the surroundings counted as those of configurations."""
    ordinals = seen.failures(FailureKind.INFRASTRUCTURE)
    first = seen.history.find(ordinals[0]) if ordinals else None
    if first is None:
        return None
    return (
        f"{format_count(len(ordinals), 'failure')} of the surroundings counted as told by the "
        f"configuration: {listed(ordinals)} ({one_line(str(first.outcome), CAUSE_CHARS)}).",
        ordinals,
    )


def cache_replays(seen: AuditedHistory) -> Said | None:
    """Results that were given again from a cache, as if a launch had told them."""
    ordinals = seen.failures(FailureKind.DUPLICATE)
    if not ordinals:
        return None
    return (
        f"{listed(ordinals).capitalize()} launched nothing: an earlier result of the same "
        f"configuration was given again, {len(ordinals)} of {len(seen.history)} trials.",
        ordinals,
    )


def dead_knob(seen: AuditedHistory) -> Said | None:
    """A knob was searched that did nothing, so that trials repeat earlier ones but for it."""
    tried = [(t.ordinal, t.config) for t in seen.history if t.config and t.reached_launch]
    searched = [
        knob
        for knob in seen.dead_knobs
        if len({config.values.get(knob) for _, config in tried} - {None}) > 1
    ]
    if not searched:
        return None
    earlier: dict[Config, set[Config]] = defaultdict(set)
    again: list[int] = []
    for ordinal, config in tried:
        before = earlier[seen.live(config)]
        if before and config not in before:
            again.append(ordinal)
        before.add(config)
    words = f"{' and '.join(searched)} had no effect on what was launched, yet it was searched"
    if again:
        words += f"; {listed(again)} repeat{'s'[len(again) - 1 :]} an earlier trial but for it"
    return f"{words}.", tuple(again)


def failed_seed(seen: AuditedHistory) -> Said | None:
    """Nothing tells what a user had before the search."""
    seed = seen.history.find(0)
    if seed is None or not isinstance(seed.outcome, Failed) or seen.best is None:
        return None
    return (
        f"The seed failed ({one_line(str(seed.outcome), CAUSE_CHARS)}), so nothing tells what the "
        "search gained.",
        (0,),
    )


def best_is_last(seen: AuditedHistory) -> Said | None:
    """The search stopped while it still got better."""
    best, tried = seen.best, [t for t in seen.history if t.reached_launch]
    if (
        not seen.study.searched_elsewhere
        or best is None
        or len(tried) < LEAST_TRIALS
        or tried[-1] is not best
    ):
        return None
    return (
        f"The best, trial {best.ordinal}, is the last of {len(seen.history)} trials: the search "
        "stopped while it still got better, so more trials may have found a better one.",
        (best.ordinal,),
    )


DEVICES = frozenset({"gpus", "rank_count"})
DOMINANT = 0.5
SAME_SCORE = 0.01


def unequal_work(seen: AuditedHistory) -> Said | None:
    """Trials whose steps process different numbers of tokens were compared by the step."""
    tokens = {
        trial.ordinal: tuple(each.tokens_per_step for each in trial.outcome.measurements)
        for trial in seen.history.measured
        if isinstance(trial.outcome, Measured)
    }
    tokens = {ordinal: work for ordinal, work in tokens.items() if work and all(work)}
    best = seen.best
    if best is None or best.ordinal not in tokens or len(set(tokens.values())) < 2:
        return None
    if seen.scoring.expression.names & PER_TOKEN:
        return None
    each = sorted(sum(work) for work in tokens.values())
    words = (
        f"Trials were compared by {seen.study.objective.expression} although a step processed "
        f"{each[0]} to {each[-1]} tokens; that of the best, trial {best.ordinal}, "
        f"{sum(tokens[best.ordinal])}{_per_token(seen, best)}."
    )
    return words, tuple(n for n, work in tokens.items() if work != tokens[best.ordinal])


def _per_token(seen: AuditedHistory, best: Trial) -> str:
    """Who would lead if tokens were counted."""
    rates = {
        trial.ordinal: rate
        for trial in seen.history.admissible
        if (rate := metric_of(trial, "tokens_per_s")) is not None
    }
    if best.ordinal not in rates:
        return ""
    fastest = max(rates, key=lambda ordinal: rates[ordinal])
    if fastest == best.ordinal:
        return f", and per token it leads as well with {format_number(rates[fastest])} tokens/s"
    return (
        f"; per token trial {fastest} leads with {format_number(rates[fastest])} tokens/s, "
        f"where trial {best.ordinal} has {format_number(rates[best.ordinal])}"
    )


def dominant_term(seen: AuditedHistory) -> Said | None:
    """The number of devices alone decides most of a score that has other terms."""
    terms = _terms(seen.scoring.expression)
    if len(terms) < 2 or seen.best is None or len(seen.history.measured) < 2:
        return None
    ranges = [_range(term, seen) for term in terms]
    total = sum(found for found in ranges if found is not None)
    for term, found in zip(terms, ranges, strict=True):
        if found is None or not term.names <= DEVICES or not total:
            continue
        if found / total > DOMINANT:
            return (
                f"The term {term.text} makes up most of the score: between trials it differs by "
                f"{format_number(found)}, all other terms by {format_number(total - found)}, so "
                f"fewer devices win almost whatever a step takes.",
                (seen.best.ordinal,),
            )
    return None


def _terms(expression: Expression) -> list[Expression]:
    """The summands of an expression."""
    nodes, found = [expression.body], list[ast.expr]()
    while nodes:
        match nodes.pop():
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                nodes += [right, left]
            case node:
                found.append(node)
    return [parse(ast.unparse(node).replace(" @ ", "@")) for node in found]


def _range(term: Expression, seen: AuditedHistory) -> float | None:
    outcomes = (trial.outcome for trial in seen.history.measured)
    metrics = [each.metrics for each in outcomes if isinstance(each, Measured)]
    try:
        values = [term.number(readings(each, seen.scoring.seed)) for each in metrics]
    except ExpressionError:
        return None
    return max(values) - min(values)


def broken_rules(seen: AuditedHistory) -> Said | None:
    """Trials were launched although a rule that holds before any launch excludes them."""
    given = {**facts(seen.study.workload, seen.study.environment), **seen.study.space.defaults}
    rules = [Rule.of(constraint) for constraint in seen.study.space.constraints]
    launched = {t.ordinal: t.config for t in seen.history if t.config and t.launched}
    broken = {n: _broken(rules, {**given, **config.values}) for n, config in launched.items()}
    broken = {n: words for n, words in broken.items() if words is not None}
    if not broken:
        return None
    first, words = next(iter(broken.items()))
    failed = len(broken.keys() - {trial.ordinal for trial in seen.history.measured})
    return (
        f"{format_count(len(broken), 'trial')} could have been excluded before the launch, of "
        f"which {failed} failed: {listed(list(broken))}; trial {first} {words}.",
        tuple(broken),
    )


def _broken(rules: list[Rule], names: Mapping[str, bool | int | float | str | None]) -> str | None:
    for rule in rules:
        with suppress(ExpressionError):
            is_known = all(names.get(name) is not None for name in rule.expression.names)
            if is_known and (words := rule.broken(names)) is not None:
                return words
    return None


def other_score(seen: AuditedHistory) -> Said | None:
    """Some recorded scores are not what the recorded objective gives, as others are.

    Where none is, the study was scored by something else, and its objective is not the record's.
    """
    published = [
        (trial, score)
        for trial in seen.history.measured
        if (score := metric_of(trial, PUBLISHED_SCORE)) is not None
    ]
    differing = [
        (trial, score)
        for trial, score in published
        if abs(score - value(trial)) > SAME_SCORE * abs(value(trial))
    ]
    if not differing or len(differing) == len(published):
        return None
    trial, score = differing[0]
    ordinals = [one.ordinal for one, _ in differing]
    return (
        f"The recorded scores of {listed(ordinals)} are not what "
        f"{seen.study.objective.expression} gives: that of trial {trial.ordinal} is "
        f"{format_number(score)} instead of {format_number(value(trial))}.",
        tuple(ordinals),
    )


CLEARLY = 2 * math.sqrt(2)
"""Two results differ clearly when their logarithms do by so many standard deviations of one."""
MOST_DIGITS = 6


def one_sample(seen: AuditedHistory) -> Said | None:
    """The best is a single number of a single launch."""
    if seen.unrepeated_best is None or len(seen.unrepeated_best[1]) > 1:
        return None
    best, _ = seen.unrepeated_best
    known = (
        "nothing in the record shows how much a second launch would differ"
        if seen.noise is None
        else f"results of equal settings are {_percent(seen.noise)} apart in this record"
    )
    return f"The best, trial {best.ordinal}, is one number of one launch; {known}.", (best.ordinal,)


def best_of_noise(seen: AuditedHistory) -> Said | None:
    """The best is the luckiest of several launches of what is effectively the same."""
    if seen.unrepeated_best is None or len(seen.unrepeated_best[1]) < 2:
        return None
    best, same = seen.unrepeated_best
    values, sign = sorted(value(trial) for trial in same), seen.scoring.sign
    alike = seen.alike.values()
    first = min(alike, key=lambda trials: median(sign * value(trial) for trial in trials))
    leads = "" if first is same else f", and by medians trial {first[0].ordinal} leads"
    apart = values[-1] / values[0] - 1 if values[0] > 0 else None
    spread = "" if apart is None else f", {_percent(apart)} apart"
    words = (
        f"{listed([trial.ordinal for trial in same]).capitalize()} set effectively the same and "
        f"got {format_number(values[0])} to {format_number(values[-1])}{spread}; the best, "
        f"trial {best.ordinal}, is the luckiest of these {len(same)}, whose median is "
        f"{format_number(median(values))}{leads}."
    )
    return words, tuple(trial.ordinal for trial in same)


def within_noise(seen: AuditedHistory) -> Said | None:
    """The best leads by less than equal settings differ by."""
    noise = seen.noise
    if noise is None or seen.unrepeated_best is None:
        return None
    best, same = seen.unrepeated_best
    if value(best) <= 0:
        return None
    leaders = (min(t, key=seen.history.cost) for t in seen.alike.values() if t is not same)
    ratios = [(value(each) / value(best), each) for each in leaders if value(each) > 0]
    behinds = ((abs(math.log(ratio)), each) for ratio, each in ratios)
    close = [(behind, each) for behind, each in behinds if behind < CLEARLY * noise]
    if not close:
        return None
    close.sort(key=itemgetter(0))
    behind, nearest = close[0]
    words = (
        f"Trial {best.ordinal} leads trial {nearest.ordinal} by {_percent(behind)}, while results "
        f"of equal settings are {_percent(noise)} apart in this record; "
        f"{len(close)} other configuration{'s'[: len(close) - 1]} cannot be distinguished from it."
    )
    return words, (best.ordinal, *(leader.ordinal for _, leader in close))


def same_result(seen: AuditedHistory) -> Said | None:
    """Different settings have the same result to the last digit."""
    found: dict[float, list[Trial]] = defaultdict(list)
    for trial in seen.history.measured:
        result = metric_of(trial, PUBLISHED_SCORE)
        if result is None or trial.config is None or not is_imported(trial):
            continue
        # So many digits that two launches do not agree by chance.
        if len(f"{result:.15g}".replace(".", "").strip("0")) >= MOST_DIGITS:
            found[result].append(trial)
    shared = {
        result: [trial.ordinal for trial in trials]
        for result, trials in found.items()
        if len({seen.live(trial.config) for trial in trials if trial.config is not None}) > 1
    }
    if not shared:
        return None
    first, ordinals = next(iter(shared)), sorted(n for each in shared.values() for n in each)
    return (
        f"{len(ordinals)} trials share {len(shared)} result{'s'[: len(shared) - 1]} to the last "
        f"digit though they set something else, as {listed(shared[first])} with "
        f"{first:.10g}: an old result may have been read again.",
        tuple(ordinals),
    )


def few_steps(seen: AuditedHistory) -> Said | None:
    """The best was timed over fewer steps than a median needs."""
    best = seen.best
    if best is None or not isinstance(best.outcome, Measured) or is_imported(best):
        return None
    fewest = min(len(one.slowest_rank_s) for one in best.outcome.measurements)
    if not 0 < fewest < MIN_TIMED_STEPS:
        return None
    return (
        f"The best, trial {best.ordinal}, was timed over {fewest} steps; "
        f"a score needs {MIN_TIMED_STEPS} at least.",
        (best.ordinal,),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


CHECKS: Final[Mapping[str, Callable[[AuditedHistory], Said | None]]] = {
    "unequal_work": unequal_work,
    "best_of_noise": best_of_noise,
    "one_sample": one_sample,
    "within_noise": within_noise,
    "few_steps": few_steps,
    "same_result": same_result,
    "other_score": other_score,
    "dominant_term": dominant_term,
    "dead_knob": dead_knob,
    "infrastructure": infrastructure,
    "cache_replays": cache_replays,
    "broken_rules": broken_rules,
    "failed_seed": failed_seed,
    "best_is_last": best_is_last,
}
"""What is looked at, the gravest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong: its name, a sentence or two with numbers, the trials it is about."""

    name: str
    words: str
    ordinals: tuple[int, ...]


def audit(study: Study, history: History, repeats: Sequence[Repeat]) -> tuple[Fault, ...]:
    """Every fault of a history, the gravest first; none where nothing is wrong."""
    seen = AuditedHistory(study=study, history=history, repeats=repeats)
    found = ((name, check(seen)) for name, check in CHECKS.items())
    return tuple(
        Fault(name=name, words=said[0], ordinals=said[1])
        for name, said in found
        if said is not None
    )
