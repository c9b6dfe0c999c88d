"""Limits of a search: when it stops and why, what was used, and prices of models.

Prices come from a dated table; a study may set others.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import takewhile
from statistics import median

from records.codec import from_document
from records.errors import Strict, StudyError
from records.llm_exchange import TokenUsage
from records.store.store import Store
from records.study import Budget, Environment, Llm, Price, Study
from records.trial import Failed, FailureKind, History, Measured, Repeat, Stage, Trial


def stop_reason(budget: Budget, history: History, used: int, out_of_time: str | None) -> str | None:
    """Return why the search should stop now, or None to continue.

    `out_of_time` says which limit another trial and the final would pass, see `TimeLimit`.
    """
    if history.launched_count >= budget.trials:
        return f"all {budget.trials} trials are used"
    if used >= budget.launch_limit:
        return f"all {budget.launch_limit} launches are used"
    if out_of_time is not None:
        return out_of_time
    if budget.patience is not None and (flat := measured_since_best(history)) >= budget.patience:
        return f"{flat} measured trials in a row brought no improvement"
    if (failed := failures_in_a_row(history)) >= budget.max_failures:
        return f"{failed} trials in a row failed"
    return None


NO_TIME = "leaves no time for another trial"
ALLOCATION = "the end of the allocation"
MORE_TIME = (
    "ask for more time ([cluster] time_limit_s, or --time where you start the job yourself), or "
    "have a trial take less of it with fewer [measure] steps"
)
HOUR_S = 3600.0
CLOSING_S = 30.0
"""What is kept of an allocation to end processes and record the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNodes:
    """The nodes that a run holds.

    `held_s` returns for how long so far, without the wait for them; `left_s` how long their
    scheduler lets them run on, None where it sets no end or they have not started.
    """

    node_count: int
    held_s: Callable[[], float]
    left_s: Callable[[], float | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """What time is left for launches of this run, each expected to take the mean of those so far.

    `launched_before` are the launches that were used when the run `started_s`, by its `clock`;
    `node_s_before` is how long earlier runs held nodes, in seconds times nodes.
    """

    budget: Budget
    held: HeldNodes
    clock: Callable[[], float]
    started_s: float
    launched_before: int
    node_s_before: float = 0.0

    @property
    def node_s(self) -> float:
        """How long this run has held nodes, in seconds times nodes."""
        return self.held.node_count * self.held.held_s()

    def left_s(self) -> float | None:
        """Return the time that is left for a launch; None without a limit."""
        return min((left_s for left_s, _ in self._limits(self._elapsed_s())), default=None)

    def has_time(self, seconds: float) -> bool:
        """Whether launches that take this long end within the limit."""
        left_s = self.left_s()
        return left_s is None or seconds <= left_s

    def out_of_time(self, used: int = 0, count: int = 0) -> str | None:
        """Return which limit N more launches would pass; without any, which is passed.

        What they take counts for at most half of a limit, so that a short one allows trials.
        """
        elapsed_s, made = self._elapsed_s(), used - self.launched_before
        ahead_s = count * elapsed_s / made if made > 0 else 0.0
        for left_s, limit in self._limits(elapsed_s):
            if left_s <= min(ahead_s, (elapsed_s + left_s) / 2):
                return f"{limit} {NO_TIME}"
        return None

    def _elapsed_s(self) -> float:
        return self.clock() - self.started_s

    def _limits(self, elapsed_s: float) -> Iterator[tuple[float, str]]:
        """Yield the time that each limit leaves, and what it is called."""
        budget = self.budget
        if budget.max_wall_s is not None:
            yield budget.max_wall_s - elapsed_s, f"the time limit of {budget.max_wall_s:g} s"
        if budget.max_node_hours is not None:
            left_s = budget.max_node_hours * HOUR_S - self.node_s_before - self.node_s
            limit = f"the limit of {budget.max_node_hours:g} node-hours"
            yield left_s / self.held.node_count, limit
        allocated_s = self.held.left_s()
        if allocated_s is not None:
            yield allocated_s - CLOSING_S, ALLOCATION


def check_first_trial(history: History, out_of_time: Callable[[], str | None]) -> None:
    """Raise `StudyError` where an allocation ended the first trial, and so would end any."""
    last = history.trials[-1].outcome if history.trials else None
    if history.measured or not isinstance(last, Failed) or not last.kind.is_infrastructure:
        return
    if last.launched is None or not (out_of_time() or "").startswith(ALLOCATION):
        return
    raise StudyError(
        f"the allocation ends sooner than one trial takes: trial {history.trials[-1].ordinal} was "
        f"ended after {last.launched.wall_s:.0f} s; {MORE_TIME}"
    )


def counts_nodes(study: Study) -> bool:
    """Whether the time that nodes are held is recorded."""
    return study.budget.max_node_hours is not None or study.launch.launcher != "local"


SCRIPT_FAULTS = re.compile(
    r"\b(FileNotFoundError|ImportError|ModuleNotFoundError|NameError|SyntaxError|IndentationError)\b"
    r"|can't open file|command not found|ended with status 12[67]\b"
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
    left = [
        budget.trials - history.launched_count,
        (budget.launch_limit - used) // launches_each,
        budget.max_failures - failures_in_a_row(history),
    ]
    if budget.patience is not None:
        left.append(budget.patience - measured_since_best(history))
    return max(1, min(left))


def remaining_launches(study: Study, history: History) -> int:
    """Return the launches that the budget of trials still allows."""
    return max(0, study.budget.trials - history.launched_count - len(history.pending))


def launches_used(history: History, repeats: Sequence[Repeat]) -> int:
    """Count every start of all ranks: trials with their retries, and repeat launches."""
    own = sum(trial.attempts for trial in history if trial.reached_launch)
    return own + len(repeats)


def lost_launches(history: History, repeats: Sequence[Repeat]) -> Counter[FailureKind]:
    """Count the launches that the infrastructure ended, by how; they teach nothing."""
    last = (each.outcome for each in (*history, *repeats))
    ended = (each.kind for each in last if isinstance(each, Failed) and each.kind.is_infrastructure)
    return Counter([*(kind for trial in history for kind in trial.lost_launches), *ended])


LONG_LAUNCH_S = 60.0
"""Launches that take this long are repeated sparingly."""


def repeat_limit(study: Study, history: History) -> int:
    """Return how many launches may repeat earlier trials.

    Where launches take long and the study sets no limit, a third of all launches so far, but at
    least those of the shortest final.
    """
    measured = [trial.outcome for trial in history if isinstance(trial.outcome, Measured)]
    walls_s = [each.measurement.wall_s or 0.0 for each in measured]
    if study.budget.launches is not None or not walls_s or median(walls_s) < LONG_LAUNCH_S:
        return study.budget.launch_limit
    return max(history.launched_count // 2, 2 * study.measure.confirm_rounds)


def launches_since_best(history: History) -> int:
    """Count launches after the best one; 0 while none is measured.

    With several objectives, count those after the newest on the front.
    """
    return sum(trial.launched for trial in _since_best(history))


def measured_since_best(history: History) -> int:
    """Count measured trials after the best one, as `launches_since_best` does."""
    return sum(trial.score is not None for trial in _since_best(history))


def _since_best(history: History) -> Sequence[Trial]:
    best = history.best
    if best is None:
        return ()
    newest = max([best.ordinal, *history.front])
    return [trial for trial in history if trial.ordinal > newest]


def failures_in_a_row(history: History) -> int:
    """Count the failed trials since the last measured one.

    Once something ran, those out of memory do not count: they show what fits.
    """
    failed = list(takewhile(lambda trial: trial.score is None, reversed(history.trials)))
    if len(failed) == len(history):
        return len(failed)
    return sum(not _is_out_of_memory(trial) for trial in failed)


def _is_out_of_memory(trial: Trial) -> bool:
    return isinstance(trial.outcome, Failed) and trial.outcome.kind is FailureKind.OUT_OF_MEMORY


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
            patience=study.budget.patience and study.budget.patience + more,
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


def nodes_usd(node_s: float, environment: Environment) -> float | None:
    """Return the price of nodes, held for seconds times nodes; None where none is given."""
    price = environment.accelerator_usd_per_hour
    return None if price is None else node_s / HOUR_S * environment.ranks_per_node * price


def price_of(model: str) -> Price | None:
    """Return the known price of any release of a model, or None."""
    return price_table().models.get(_RELEASE.sub("", model))
