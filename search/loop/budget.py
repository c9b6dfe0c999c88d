"""Limits of a search: when it stops and why, what was used, and prices of models.

Prices come from a dated table; a study may set others.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import takewhile

from policies.space import Space
from records.codec import from_document
from records.errors import Strict, StudyError
from records.llm_exchange import TokenUsage
from records.store.store import Store
from records.study import Budget, Llm, Price, Study
from records.trial import Failed, FailureKind, History, Repeat, Stage


def stop_reason(budget: Budget, history: History, used: int, elapsed_s: float) -> str | None:
    """Return why the search should stop now, or None to continue.

    `elapsed_s` is when another trial and the final would end, see `TimeLimit`.
    """
    if history.launched_count >= budget.trials:
        return f"all {budget.trials} trials are used"
    if used >= budget.launch_limit:
        return f"all {budget.launch_limit} launches are used"
    if budget.max_wall_s is not None and elapsed_s >= budget.max_wall_s:
        return f"the time limit of {budget.max_wall_s:g} s leaves no time for another trial"
    if (flat := launches_since_best(history)) >= budget.patience:
        return f"{flat} launches in a row brought no improvement"
    if (failed := failures_in_a_row(history)) >= budget.max_failures:
        return f"{failed} trials in a row failed"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """When launches of this run would end, each expected to take the mean of those so far.

    `launched_before` are the launches that were used when the run `started_s`, by its `clock`.
    """

    max_s: float | None
    clock: Callable[[], float]
    started_s: float
    launched_before: int

    def expected_s(self, used: int = 0, count: int = 0) -> float:
        """Return the time of the run at which N more launches would end; without any, now.

        What they take counts for at most half of the limit, so that a short one allows trials.
        """
        elapsed_s, made = self.clock() - self.started_s, used - self.launched_before
        if self.max_s is None or made < 1:
            return elapsed_s
        return elapsed_s + min(count * elapsed_s / made, self.max_s / 2)

    def left_s(self) -> float | None:
        """Return the time that is left for a launch; None without a limit."""
        return None if self.max_s is None else self.max_s - (self.clock() - self.started_s)

    def allows(self, used: int = 0, count: int = 0) -> bool:
        """Whether N more launches would end in time; without any, whether there is time left."""
        return self.max_s is None or self.expected_s(used, count) < self.max_s


SCRIPT_FAULTS = re.compile(
    r"\b(ImportError|ModuleNotFoundError|SyntaxError|IndentationError)\b|can't open file"
    r"|command not found|ended with status 12[67]\b"
)
CAUSE_CHARS = 300


def script_fault(study: Study, history: History) -> str | None:
    """Return why a script cannot be measured in any configuration; None where it may be.

    Such are reports that are missing or wrong, and a script that does not even start, as long as
    no trial was measured.
    """
    if study.command is None or history.measured:
        return None
    for trial in history:
        failed = trial.outcome
        if not isinstance(failed, Failed) or not trial.launched:
            continue
        unreadable = failed.kind is FailureKind.METRIC_ERROR and failed.stage is not Stage.SCORE
        unstarted = trial.ordinal == 0 and SCRIPT_FAULTS.search(failed.message)
        if unreadable or unstarted:
            return (
                f"trial {trial.ordinal} shows a fault of the script that no configuration avoids: "
                f"{failed.message[:CAUSE_CHARS]}; correct it, and check it with `cclsearch try` "
                "before the next search"
            )
    return None


def without_patience(study: Study, space: Space) -> Study:
    """Return the study without patience if its budget covers every feasible configuration."""
    trials = study.budget.trials
    if not space.is_listable or len(space.feasible) > trials:
        return study
    return replace(study, budget=replace(study.budget, patience=max(trials, study.budget.patience)))


def exhausted_reason(study: Study) -> str:
    """Return why nothing more is proposed although the budget allows it."""
    if study.replay_of is not None:
        return f"every policy of study {study.replay_of} was repeated"
    return "every feasible configuration was tried"


def parallel_limit(study: Study, history: History, used: int) -> int:
    """Return how many trials may start in parallel so that no limit can be exceeded.

    Each may need all of its launches twice: in parallel, and alone.
    """
    budget = study.budget
    launches_each = 2 * (1 + study.measure.infrastructure_retries)
    left = (
        budget.trials - history.launched_count,
        (budget.launch_limit - used) // launches_each,
        budget.patience - launches_since_best(history),
        budget.max_failures - failures_in_a_row(history),
    )
    return max(1, min(left))


def remaining_launches(study: Study, history: History) -> int:
    """Return the launches that the budget of trials still allows."""
    return max(0, study.budget.trials - history.launched_count - len(history.pending))


def launches_used(history: History, repeats: Sequence[Repeat]) -> int:
    """Count every start of all ranks: trials with their retries, and repeat launches."""
    own = sum(trial.attempts for trial in history if trial.reached_launch)
    return own + len(repeats)


def launches_since_best(history: History) -> int:
    """Count launches after the best one; 0 while none is measured.

    With several objectives, count those after the newest on the front.
    """
    best = history.best
    if best is None:
        return 0
    newest = max([best.ordinal, *history.front])
    return sum(trial.launched for trial in history if trial.ordinal > newest)


def failures_in_a_row(history: History) -> int:
    """Count the failed trials since the last measured one."""
    return sum(1 for _ in takewhile(lambda trial: trial.score is None, reversed(history.trials)))


def extend_budget(study_id: str, more: int, records: Store, most: int | None = None) -> Study:
    """Record a budget for `more` trials from now, with launches for their races and final.

    Return the study. Raises `StudyError` where it would have more than `most` trials.
    """
    with records.lock(study_id):  # a running search has read the budget
        study = records.find(study_id).study
        history = records.history(study_id)
        trials = history.launched_count + more
        if most is not None and trials > most:
            raise StudyError(
                f"{more} more make {trials} trials; at most {most} are allowed here for a study"
            )
        limit = study.budget.launches
        used = launches_used(history, records.repeats(study_id))
        enough = Budget(trials=more).launch_limit + (used if limit is None else limit)
        by_default = limit is None and Budget(trials=trials).launch_limit >= enough
        budget = replace(
            study.budget,
            trials=trials,
            patience=study.budget.patience + more,
            launches=None if by_default else enough,
        )
        study = replace(study, budget=budget)
        records.replace_study(study_id, study)
    return study


_RELEASE = re.compile(r"-\d{8}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable(Strict):
    """Prices by model on `date`."""

    date: str
    models: Mapping[str, Price]


@cache
def price_table() -> PriceTable:
    """Return the table shipped with this version."""
    text = (files("search.loop") / "prices.toml").read_text(encoding="utf-8")
    return from_document(PriceTable, tomllib.loads(text))


def with_price(llm: Llm) -> Llm:
    """Return the model with its known price, unless the study sets one."""
    return llm if llm.price is not None else replace(llm, price=price_of(llm.model))


def cost_usd(usage: TokenUsage, model: str, llm: Llm) -> float | None:
    """Return the cost of using a model; None if its price is unknown or it is not the study's."""
    price = with_price(llm).price
    return None if price is None or model != llm.model else price.cost_usd(usage)


def price_of(model: str) -> Price | None:
    """Return the known price of any release of a model, or None."""
    return price_table().models.get(_RELEASE.sub("", model))
