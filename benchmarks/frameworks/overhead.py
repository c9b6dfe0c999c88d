"""What a launch of a search took beyond the same launch by hand, both without their steps."""

import statistics
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from records.store.store import Store
from records.trial import Measured


def print_overhead(root: Path, searched_s: float, by_hand_s: Sequence[float]) -> None:
    """Print it for the newest study of a store, and what passed between its launches.

    `by_hand_s` are seconds of the launches by hand beside their steps: interpreters that start,
    the compiler, the exit.
    """
    with closing(Store(root)) as store:
        study_id = store.studies(limit=1)[0].id
        trials, repeats = store.history(study_id).trials, store.repeats(study_id)
    outcomes = [each.outcome for each in trials] + [each.outcome for each in repeats]
    measured = [each.measurement for each in outcomes if isinstance(each, Measured)]
    launches_s = [each.wall_s or 0 for each in measured]
    steps_s = [sum(each.step_times_s[0]) + sum(each.warmup_times_s[0]) for each in measured]
    beside_s = [
        launch_s - of_steps_s for launch_s, of_steps_s in zip(launches_s, steps_s, strict=True)
    ]
    ours, by_hand = statistics.median(beside_s), statistics.median(by_hand_s)
    failed = len(outcomes) - len(measured)
    between_s = (searched_s - sum(launches_s)) / len(outcomes)
    print(
        f"overhead: beside its steps a launch took {ours:.1f} s, and {by_hand:.1f} s by hand: "
        f"{ours - by_hand:+.1f} s for traces and supervision; {between_s:.1f} s passed per launch "
        f"outside of {len(measured)} measured launches{f', {failed} that failed' if failed else ''}"
    )
