"""Checks of whether a history compared what can be compared, by what was asked."""

import ast
from collections.abc import Mapping

from evaluator.metrics.published import SCORE
from evaluator.readings import readings
from records.expression import Expression, ExpressionError, parse
from records.rule import Rule, facts
from records.trial import Measured, Trial
from search.auditing.audited import Audited, Said, counted, listed, metric_of, value
from search.words.trial import number

PER_TOKEN = frozenset(
    {
        *("tokens_per_s", "tokens_per_s_per_rank", "rank_seconds_per_token"),
        *("cost_per_million_tokens", "mfu", "achieved_tflops", "output_tokens_per_s"),
    }
)
"""Metrics that are fair to trials which do more in a step."""
DEVICES = frozenset({"gpus", "rank_count"})
DOMINANT = 0.5
SAME_SCORE = 0.01


def unequal_work(seen: Audited) -> Said | None:
    """Trials whose steps process different numbers of tokens were compared by the step."""
    tokens = {trial.ordinal: work for trial in seen.history.measured if (work := _work(trial))}
    best = seen.best
    if best is None or best.ordinal not in tokens or len(set(tokens.values())) < 2:
        return None
    if seen.scoring.expression.names & PER_TOKEN:
        return None
    each = sorted(sum(work) for work in tokens.values())
    others = tuple(n for n, work in tokens.items() if work != tokens[best.ordinal])
    words = (
        f"Trials were compared by {seen.study.objective.expression} although a step processed "
        f"{each[0]} to {each[-1]} tokens; that of the best, trial {best.ordinal}, "
        f"{sum(tokens[best.ordinal])}{_per_token(seen, best)}."
    )
    return words, others


def _work(trial: Trial) -> tuple[int, ...]:
    """Tokens per step of every launch of a trial; none where they are not known."""
    if not isinstance(trial.outcome, Measured):
        return ()
    tokens = tuple(each.tokens_per_step for each in trial.outcome.measurements)
    return tokens if all(tokens) else ()


def _per_token(seen: Audited, best: Trial) -> str:
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
        return f", and per token it leads as well with {number(rates[fastest])} tokens/s"
    return (
        f"; per token trial {fastest} leads with {number(rates[fastest])} tokens/s, "
        f"where trial {best.ordinal} has {number(rates[best.ordinal])}"
    )


def dominant_term(seen: Audited) -> Said | None:
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
                f"{number(found)}, all other terms by {number(total - found)}, so fewer devices "
                f"win almost whatever a step takes.",
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


def _range(term: Expression, seen: Audited) -> float | None:
    values: list[float] = []
    for trial in seen.history.measured:
        if isinstance(trial.outcome, Measured):
            try:
                values.append(term.number(readings(trial.outcome.metrics, seen.scoring.seed)))
            except ExpressionError:
                return None
    return max(values) - min(values)


def broken_rules(seen: Audited) -> Said | None:
    """Trials were launched although a rule that holds before any launch excludes them."""
    given = facts(seen.study.workload, seen.study.environment)
    rules = [Rule.of(constraint) for constraint in seen.study.space.constraints]
    broken: dict[int, str] = {}
    for trial in seen.history:
        if trial.config is None or not trial.launched:
            continue
        words = _broken(rules, {**given, **seen.study.space.defaults, **trial.config.values})
        if words is not None:
            broken[trial.ordinal] = words
    if not broken:
        return None
    first, words = next(iter(broken.items()))
    measured = {trial.ordinal for trial in seen.history.measured}
    failed = sum(ordinal not in measured for ordinal in broken)
    return (
        f"{counted(len(broken), 'trial')} could have been excluded before the launch, of which "
        f"{failed} failed: {listed(list(broken))}; trial {first} {words}.",
        tuple(broken),
    )


def _broken(rules: list[Rule], names: Mapping[str, bool | int | float | str | None]) -> str | None:
    for rule in rules:
        if any(names.get(name) is None for name in rule.expression.names):
            continue
        try:
            words = rule.broken(names)
        except ExpressionError:
            continue
        if words is not None:
            return words
    return None


def other_score(seen: Audited) -> Said | None:
    """Some scores on record are not what the objective on record gives, as others are.

    Where none is, the study was scored by something else, and its objective is not the record's.
    """
    published = [
        (trial, score)
        for trial in seen.history.measured
        if (score := metric_of(trial, SCORE)) is not None
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
        f"The scores on record of {listed(ordinals)} are not what "
        f"{seen.study.objective.expression} gives: that of trial {trial.ordinal} is "
        f"{number(score)} instead of {number(value(trial))}.",
        tuple(ordinals),
    )
