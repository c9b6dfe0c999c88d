"""When a search stops, and the words for why."""

from collections.abc import Sequence
from dataclasses import replace

from policies.space import Space
from records.history import History
from records.study import Budget, Study
from records.trial import Repeat, Trial


def stop_reason(budget: Budget, history: History, used: int, elapsed_s: float) -> str | None:
    """Why the search should stop now, or None to go on."""
    if history.launched_count >= budget.trials:
        return f"all {budget.trials} trials are used"
    if used >= budget.launch_limit:
        return f"all {budget.launch_limit} launches are used"
    if budget.max_wall_s is not None and elapsed_s >= budget.max_wall_s:
        return f"the time limit of {budget.max_wall_s:g} s is reached"
    if (flat := launches_since_best(history)) >= budget.patience:
        return f"{flat} launches in a row brought no improvement"
    if (failed := failures_in_a_row(history)) >= budget.max_failures:
        return f"{failed} trials in a row failed"
    return None


def enumerating(study: Study, space: Space) -> Study:
    """The study without patience where its budget pays for every feasible configuration."""
    trials = study.budget.trials
    if not space.is_listable or len(space.feasible) > trials:
        return study
    return replace(study, budget=replace(study.budget, patience=max(trials, study.budget.patience)))


def nothing_left(study: Study) -> str:
    """Why nothing more is proposed, where no limit of the budget says stop."""
    if study.replay_of is not None:
        return f"every policy of study {study.replay_of} was launched again"
    return "every feasible configuration was tried"


def most_at_once(study: Study, history: History, used: int) -> int:
    """Trials that may be begun together now, so that no limit is passed however they end.

    One of several may need all of its launches twice: beside others, and alone.
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
    """Launches that the budget of trials still pays for."""
    return max(0, study.budget.trials - history.launched_count - len(history.pending))


def launches_used(history: History, repeats: Sequence[Repeat]) -> int:
    """Every start of all ranks: trials with their repetitions, and launches made again."""
    own = sum(trial.attempts for trial in history if trial.reached_launch)
    return own + len(repeats)


def launches_since_best(history: History) -> int:
    """Launches that the budget counts, after the one that is best; 0 while none is measured.

    Of several objectives, after the newest one on the front.
    """
    best = history.best
    if best is None:
        return 0
    newest = max([best.ordinal, *history.front])
    return sum(trial.launched for trial in history if trial.ordinal > newest)


def failures_in_a_row(history: History) -> int:
    """Failed trials since the last measured one."""
    count = 0
    for trial in reversed(history.trials):
        if _measured(trial):
            break
        count += 1
    return count


def _measured(trial: Trial) -> bool:
    return trial.score is not None
