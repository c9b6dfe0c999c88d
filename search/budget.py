"""When a search stops, and the words for why."""

from collections.abc import Sequence

from records.study import Budget
from records.trial import History, Repeat, Trial


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


def launches_used(history: History, repeats: Sequence[Repeat]) -> int:
    """Every start of all ranks: trials with their repetitions, and launches made again."""
    own = sum(trial.attempts for trial in history if trial.reached_launch)
    return own + len(repeats)


def launches_since_best(history: History) -> int:
    """Launches that the budget counts, after the one that is best; 0 while none is measured."""
    best = history.best
    if best is None:
        return 0
    return sum(trial.launched for trial in history if trial.ordinal > best.ordinal)


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
