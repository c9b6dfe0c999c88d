"""What comparing two sides gave, for programs."""

from collections.abc import Mapping
from dataclasses import asdict

from evaluator.timing.interval.judgement import Judgement
from search.comparing.compared import Compared, Comparisons
from search.comparing.verdicts import verdict_words, why_words


def comparisons_facts(found: Comparisons) -> Mapping[str, object]:
    """Everything that was found, as JSON takes it; what does not exist is null.

    A ratio is what B takes over what A takes, below 1 where B is better.
    """
    return {
        "a": asdict(found.a),
        "b": asdict(found.b),
        "quantity": found.quantity,
        "unit": found.unit,
        "lower_is_better": found.lower_is_better,
        "margin": found.rule.margin,
        "alpha": found.rule.alpha,
        "correction": "holm",
        "rows": [_line_facts(line, found) for line in found.lines],
        "counts": {verdict.value: count for verdict, count in found.counts.items()},
        "only_a": found.only_a,
        "only_b": found.only_b,
        "caveats": found.caveats,
        "next": found.next_steps,
    }


def _line_facts(line: Compared, of: Comparisons) -> Mapping[str, object]:
    return {
        "name": line.name,
        **asdict(line.comparison),
        "words": verdict_words(line, of),
        "why": why_words(line, of),
        "change": line.change,
        "a": asdict(line.a) if line.a else None,
        "b": asdict(line.b) if line.b else None,
        "rounds": [asdict(pair) for pair in line.pairs],
        "screening": _screening_facts(line.screening) if line.screening else None,
    }


def _screening_facts(judgement: Judgement) -> Mapping[str, object]:
    return {
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "message": judgement.message,
        "relative_change": judgement.change.relative if judgement.change else None,
    }
