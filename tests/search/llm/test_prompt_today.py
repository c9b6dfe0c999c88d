"""What the model is told of today's machine, of memory, and of what it expected."""

from dataclasses import replace

import pytest

from evaluator.machine import local_environment
from evaluator.objective import scoring_of
from records.study import Environment, Study
from records.trial import (
    Config,
    FailureKind,
    History,
    Prediction,
    Purpose,
    RaceResult,
    Repeat,
    Trial,
)
from search.llm.messages import Prompt
from search.llm.prompt import PromptWriter
from search.strategies.base import Choice, untried
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study
from tests.support.search import SPACE, STUDY, failed, measured, out_of_memory, past, trial

FIRST, SECOND, THIRD, FOURTH = SPACE.feasible[1:5]


def write(history: History, study: Study = STUDY) -> Prompt:
    return PromptWriter(SPACE, scoring_of(study)).write(study, history, untried(SPACE, history))


def between(text: str, start: str, end: str) -> str:
    return text.split(start)[1].split(end)[0]


def again(ordinal: int, step_s: float, series: int, number: int, share: float) -> Repeat:
    return Repeat(
        series=series,
        round=number,
        ordinal=ordinal,
        outcome=measured(step_s, others_share=share),
        purpose=Purpose.SELF_TEST,
    )


def busy() -> History:
    """A seed of 1 s on a quiet machine, which takes 4 s at last."""
    steps = (1.0, 1.2, 0.9, 4.0, 4.0, 4.0)
    repeats = (again(0, step_s, 1, n, 0.1 if n < 3 else 0.9) for n, step_s in enumerate(steps))
    seed = trial(0, FIRST, measured(1.0, others_share=0.1))
    return History((seed,), repeats=tuple(repeats), again={0: steps})


def test_the_noise_of_the_day_is_told_and_no_percentage_is_made_up() -> None:
    prompt = write(busy())
    today = between(prompt.turn, "## The machine today", "## Best so far")

    assert "a few percent" not in prompt.system
    assert "- noise: rounds of equal launches differ by " in today
    assert "; 12 rounds show no difference below 2.2x;" in today
    assert "two single launches (~) show none below" in today


def test_before_anything_was_launched_twice_the_noise_is_not_known() -> None:
    assert "- noise: not known yet" in write(History((trial(0, FIRST, measured(1.0)),))).turn


def test_load_and_drift_are_told() -> None:
    today = between(write(busy()).turn, "## The machine today", "## Best so far")

    assert "3 of 7 launches disturbed" in today
    assert "other processes used 10 % of the cores at first, 90 % lately" in today
    assert "the same configuration (#0) was 0.25x as good when launched last as at first" in today


def test_ranks_that_share_cores_are_told_before_the_first_turn() -> None:
    few = Environment(
        name="here", device="cpu", accelerator="X, 2 cores", world_size=16, ranks_per_node=4
    )
    enough = replace(few, accelerator="X, 4 cores")

    assert "Up to 4 ranks share 2 cores" in write(History(), replace(STUDY, environment=few)).task
    assert "share" not in write(History(), replace(STUDY, environment=enough)).task


def test_a_trial_has_one_value_with_the_launches_behind_it() -> None:
    turn = write(busy()).turn

    assert turn.count("-> the best; 2.6 s (0.9 to 4, 6 launches);") == 1
    assert "-> 2.6 s (0.9 to 4, 6 launches); compute" in turn
    assert "when launched again" not in turn


def test_every_row_is_on_the_scale_of_the_best() -> None:
    """Trial 1 led by a race; trial 2 came when the machine was four times slower."""
    race = RaceResult(
        challenger=1, incumbent=0, verdict="fast", ratio=0.5, ratio_low=0.4, ratio_high=0.625
    )
    repeats = tuple(
        again(ordinal, step_s, 2, n, 0.9)
        for n, (ordinal, step_s) in enumerate([(0, 8.0), (1, 4.0)])
    )
    steps_s = zip((FIRST, SECOND, THIRD), (2.0, 1.0, 4.4), strict=True)
    trials = tuple(trial(n, config, measured(step_s)) for n, (config, step_s) in enumerate(steps_s))
    history = History(
        trials, races=(race,), repeats=repeats, again={0: (8.0,), 1: (4.0,)}, incumbent=1
    )
    turn = write(history).turn

    table = turn.split("## Trials, newest first")[1]
    assert "-> 0.50x (0.40 to 0.62); 8 s;" in table
    assert "-> the best; 4 s;" in table
    assert "-> ~0.91x; 4.4 s;" in table
    assert "against the best: ~0.91x" in between(turn, "## Latest trial", "## Trials")


def test_a_single_launch_says_under_what_load_it_was_made() -> None:
    """No reader can take the load out of a ratio of launches that were not made side by side."""
    quiet, busy = (measured(1.0, others_share=share) for share in (0.1, 0.45))
    turn = write(
        History((trial(0, FIRST, quiet), trial(1, SECOND, quiet), trial(2, THIRD, busy)))
    ).turn

    table = turn.split("## Trials, newest first")[1]
    assert "-> ~1.00x (others 45%); 1 s;" in table
    assert "-> ~1.00x; 1 s;" in table


def expecting(ordinal: int, step_s: float | None, speedup: float, over: int) -> Trial:
    outcome = out_of_memory() if step_s is None else measured(step_s)
    one = trial(ordinal, SPACE.feasible[ordinal + 1], outcome)
    prediction = Prediction(speedup=speedup, over=over)
    why = f"Belief {ordinal}. " + "x" * 500
    return replace(one, policy=replace(one.policy, rationale=why, prediction=prediction))


def test_what_was_expected_stands_beside_what_was_measured_with_the_reason() -> None:
    history = History(
        (
            trial(0, FIRST, measured(2.0)),
            expecting(1, 1.0, 1.5, 0),
            expecting(2, 1.25, 1.2, 1),
            expecting(3, None, 1.1, 1),
            expecting(4, 2.0, 1.3, 1),
        )
    )
    told = between(write(history).turn, "## Expected and measured", "## Failures")

    assert "#4: expected 1.30x of #1, measured ~0.50x: Belief 4." in told
    assert "#3: expected 1.10x of #1, failed (out_of_memory): Belief 3." in told
    assert "#2: expected 1.20x of #1, measured ~0.80x: Belief 2." in told
    assert "#1: expected 1.50x of #0, measured ~2.00x\n" in told
    assert "#0" not in told.replace("of #0", "")
    assert len(told) < 1200


def test_of_a_long_search_the_last_expectations_and_those_that_led_are_shown() -> None:
    race = RaceResult(challenger=2, incumbent=0, verdict="fast", ratio=0.5)
    history = History(
        (trial(0, FIRST, measured(9.0)), *(expecting(n, 5.0 + n, 1.2, 0) for n in range(1, 15))),
        races=(race,),
        incumbent=2,
    )
    told = between(write(history).turn, "## Expected and measured", "## Trials")

    shown = [int(line[1:].split(":")[0]) for line in told.splitlines() if line.startswith("#")]
    assert shown == [14, 13, 12, 11, 10, 9, 2]


def test_one_failure_is_told_once_however_often_it_came() -> None:
    cause = "rank 2: tried to allocate 4194304 bytes"
    oom = failed(FailureKind.OUT_OF_MEMORY, cause)
    history = History(
        (
            trial(0, FIRST, measured(1.0)),
            trial(1, SECOND, oom),
            trial(2, THIRD, oom),
            trial(3, FOURTH, measured(2.0)),
        )
    )

    assert write(history).turn.count(cause) == 1
    assert write(History(history.trials[:2])).turn.count(cause) == 1
    assert "FAILED out_of_memory at launch: as #1\n" in write(history).turn


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 trial so far, 1 measured;"), (2, "2 trials so far, 2 measured;")]
)
def test_trials_are_counted_in_english(count: int, words: str) -> None:
    assert words in write(past(count)).turn


def builtin() -> tuple[Study, PromptWriter]:
    environment = replace(
        local_environment(), device="cpu", accelerator="X, 2 cores", world_size=4, ranks_per_node=4
    )
    study = completed(builtin_study(environment))
    return study, PromptWriter(space_of(study), scoring_of(study))


def test_memory_is_estimated_for_the_best_its_neighbours_and_the_candidates() -> None:
    study, writer = builtin()
    space = space_of(study)
    settings = {"dp_replicate": 4, "dp_shard": 1, "tp": 1, "pp": 1, "micro_batch": 4}
    best = space.check({**settings, "activation_checkpointing": "full"})
    assert isinstance(best, Config)
    other = space.feasible[1]
    history = History((trial(0, best, measured(1.0)),))
    prompt = writer.write(
        study,
        history,
        untried(space, history),
        candidates=(Choice(config=other, why="w", expected="expected 1.10x (0.90 to 1.30)"),),
    )

    assert "`estimated_memory_bytes` is an estimate" in prompt.task
    assert "\nEstimated memory per rank: " in prompt.turn
    (candidate,) = [line for line in prompt.turn.splitlines() if line.startswith("1. ")]
    assert candidate.startswith("1. as #0 but ")
    assert candidate.endswith(" MiB a rank")
    near = prompt.turn.split("## Untried configurations")[1]
    assert all(line.endswith(" MiB") for line in near.splitlines() if line.startswith("- "))
    assert "\nToo large by the estimate: activation_checkpointing=none: 47.02 MiB" in near


def test_a_space_without_an_estimate_says_nothing_of_memory_that_it_cannot_know() -> None:
    prompt = write(History((trial(0, FIRST, measured(1.0)),)))

    assert "stimated" not in prompt.task + prompt.turn


def test_schedules_that_are_no_choice_are_not_in_the_constraints() -> None:
    study, writer = builtin()
    task = writer.write(study, History(), None).task

    assert "zbv_zero_bubble" in task
    assert not [name for name in ("looped_bfs", "dualpipev", "interleaved_zero") if name in task]
