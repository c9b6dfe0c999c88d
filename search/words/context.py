"""The contexts of a study in words: what tells them apart, and how a trial did in each."""

from dataclasses import dataclass

from evaluator.objective import Scoring, scoring_of
from records.choices import choices_of, list_words
from records.history import History
from records.study import Context, Study
from records.trial import Config, Failed, InContext, Outcome, Score, Trial
from search.context_launches import in_one
from search.contexts import parts
from search.finding import InContextFinding
from search.spaces import study_in
from search.words.comparison import comparison_words
from search.words.config import flags
from search.words.trial import one_line, score_words

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
        told = score_words(self.score)
        if self.ratio_to_seed is None:
            return told
        return f"{told}, {self.ratio_to_seed:.3f} times the seed's"


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
    settings = flags(own.config)
    for part in others:
        there = "the same" if part.config == own.config else flags(part.config)
        settings += f"; in {part.name}: {there}"
    return settings


def context_finding_words(found: InContextFinding) -> tuple[str, str]:
    """A label and what it says about the winner in one context, or over several."""
    alone = " (held out)" if found.held_out and found.context_count == 1 else ""
    label = f"against the seed in {found.name}{alone}"
    if found.against_seed is None:
        return label, "not compared, there were no launches left for it"
    return label, comparison_words(found.against_seed)


def other_choices(study: Study, context: Context) -> list[str]:
    """The knobs that have other choices in a context than in the study's own, in words."""
    own = {dimension.name: choices_of(dimension) for dimension in study.space.dimensions}
    return [
        f"{dimension.name} in {list_words(choices_of(dimension))}"
        for dimension in study_in(study, context).space.dimensions
        if choices_of(dimension) != own.get(dimension.name)
    ]


def _result(one: InContext, scoring: Scoring, seed: Outcome) -> InContextResult:
    score = _score(one.outcome, scoring)
    if isinstance(score, Failed):
        why = one_line(str(score), CAUSE_CHARS)
        return InContextResult(name=one.name, score=None, ratio_to_seed=None, failure=why)
    first = in_one(seed, one.name)
    base = None if first is None else _score(first, scoring)
    ratio = score.value / base.value if isinstance(base, Score) and base.value else None
    return InContextResult(name=one.name, score=score, ratio_to_seed=ratio, failure=None)


def _score(outcome: Outcome, scoring: Scoring) -> Score | Failed:
    return (
        outcome if isinstance(outcome, Failed) else scoring.score(outcome.metrics, outcome.absent)
    )
