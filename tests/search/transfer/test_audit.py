"""What an audit finds in a history, and that it finds nothing in a sound one."""

from dataclasses import replace

import pytest

from evaluator.metrics.base import PUBLISHED_SCORE
from records.study import Constraint, Environment, Objective, Origin
from records.trial import (
    FailureKind,
    History,
    Measured,
    Measurement,
    MetricValue,
    Purpose,
    Repeat,
    Score,
)
from search.transfer.audit import audit
from tests.support import records as testing
from tests.support.evaluator import Fails, Takes

FOREIGN = Origin(kind="jsonl", source="history.jsonl", dead_knobs=("idle",))
STUDY = replace(testing.study(), origin=FOREIGN)
OURS = replace(STUDY, origin=None)
PER_TOKEN = replace(STUDY, objective=Objective(expression="tokens_per_s", direction="maximize"))
FAILED = testing.failed()
FEW_STEPS = replace(
    testing.measured(),
    measurement=replace(testing.measured().measurement, step_times_s=((0.5, 0.5), (0.5, 0.5))),
)


def imported(step_s, tokens=1024, **metrics):
    """What a record tells of a launch that took so long."""
    told = {"step_time": step_s, "tokens_per_s": tokens / step_s, **metrics}
    return Measured(
        measurement=Measurement(
            step_times_s=((step_s,),),
            warmup_times_s=(),
            losses=(),
            tokens_per_step=tokens,
            peak_memory_bytes=(),
            wall_s=None,
            device="cuda",
            torch_version=None,
            imported=True,
        ),
        metrics=tuple(
            MetricValue(name=name, value=value, unit="", better="lower", version=0)
            for name, value in told.items()
        ),
    )


def published(step_s, score):
    return imported(step_s, **{PUBLISHED_SCORE: score})


def trials(*made):
    """A history of these outcomes, each with its settings."""
    made = (each if isinstance(each, tuple) else (each, {"tp": n}) for n, each in enumerate(made))
    return History(
        tuple(testing.trial(n, outcome, knobs) for n, (outcome, knobs) in enumerate(made))
    )


def found(history, study=STUDY, repeats=()):
    return {fault.name: fault for fault in audit(study, history, repeats)}


def test_nothing_is_wrong_with_a_search_of_ours(tabular):
    oom = Fails(kind=FailureKind.OUT_OF_MEMORY, message="too big")
    study = tabular({0: Takes(step_time_s=0.5), 1: Takes(step_time_s=0.25), 2: oom})
    study.run()
    assert audit(study.study, study.history, study.store.repeats(study.study_id)) == ()


def test_nothing_is_wrong_where_nothing_was_tried_or_measured():
    assert audit(STUDY, History(), ()) == ()
    assert audit(STUDY, trials(FAILED), ()) == ()


SAME = published(1.0, 215877426.0), published(2.0, 215877426.0)
FEW_DIGITS = published(3.0, 2.0), published(4.0, 2.0)  # which agree by chance
LATE = FAILED, imported(2.0), imported(1.0)
MORE_TOKENS = imported(1.0, 1024), imported(2.0, 8192), imported(4.0, 1024)
LOST, CACHED = map(testing.failed, (FailureKind.INFRASTRUCTURE, FailureKind.DUPLICATE))


@pytest.mark.parametrize(
    ("name", "outcomes", "ordinals", "words"),
    [
        (
            "unequal_work",
            MORE_TOKENS,
            (1,),
            "1024 to 8192 tokens; that of the best, trial 0, 1024;",
        ),
        ("unequal_work", MORE_TOKENS, (1,), "per token trial 1 leads with 4096 tokens/s"),
        ("few_steps", (FEW_STEPS,), (0,), "timed over 2 steps"),
        ("same_result", (*SAME, *FEW_DIGITS), (0, 1), "215877426"),
        ("other_score", (published(1.0, 1.0), published(2.0, 3.0)), (1,), "is 3 instead of 2"),
        ("infrastructure", (imported(1.0), LOST), (1,), "1 failure of the surroundings"),
        ("cache_replays", (imported(1.0), CACHED), (1,), "1 of 2 trials"),
        ("failed_seed", LATE, (0,), "nothing tells what the search gained"),
        ("best_is_last", LATE, (2,), "the last of 3 trials"),
    ],
)
def test_a_fault_is_named_with_its_trials(name, outcomes, ordinals, words):
    fault = found(trials(*outcomes))[name]
    assert fault.ordinals == ordinals
    assert words in fault.words


def test_trials_that_a_rule_excludes_are_named_with_the_rule():
    ranks = Constraint(name="ranks", expression="tp * dp <= world_size")
    machine = Environment(name="m", device="cuda", accelerator="a", world_size=4, ranks_per_node=4)
    space = replace(STUDY.space, constraints=(ranks,))
    history = trials(
        (imported(1.0), {"tp": 2, "dp": 2}),
        (FAILED, {"tp": 4, "dp": 2}),
        (FAILED, {"tp": 8}),  # the rule cannot be asked
    )
    fault = found(history, replace(STUDY, space=space, environment=machine))["broken_rules"]
    assert fault.ordinals == (1,)
    assert "breaks ranks: tp * dp <= world_size with dp=2, tp=4, world_size=4" in fault.words


@pytest.mark.parametrize(
    ("name", "study", "outcomes"),
    [
        ("unequal_work", PER_TOKEN, MORE_TOKENS),
        ("infrastructure", OURS, (imported(1.0), LOST)),
        ("cache_replays", OURS, (imported(1.0), CACHED)),
    ],
)
def test_what_is_no_fault_is_not_named(name, study, outcomes):
    assert name not in found(trials(*outcomes), study)


def test_the_luckiest_of_equal_launches_is_named_with_their_median():
    named = found(
        trials(
            (imported(1.10), {"tp": 1, "idle": False}),
            (imported(1.00), {"tp": 1, "idle": True}),
            (imported(1.02), {"tp": 2, "idle": True}),
        )
    )
    assert named["best_of_noise"].ordinals == (0, 1)
    assert "10 % apart" in named["best_of_noise"].words
    assert "by medians trial 2 leads" in named["best_of_noise"].words
    assert named["within_noise"].ordinals == (1, 2)
    assert named["dead_knob"].ordinals == (1,)


def test_a_best_of_one_launch_is_named_and_one_that_was_launched_again_is_not():
    history = trials(imported(1.0), imported(2.0))
    again = Repeat(series=2, round=0, ordinal=0, outcome=imported(1.0), purpose=Purpose.CONFIRM)
    assert found(history)["one_sample"].ordinals == (0,)
    assert "one_sample" not in found(history, repeats=(again,))


def test_a_term_of_devices_that_decides_the_score_is_named():
    aim = Objective(expression="16/rank_count + 0.1/step_time", direction="maximize")
    history = trials(imported(2.0, rank_count=4), imported(1.0, rank_count=16))
    scored = tuple(
        replace(trial, score=Score(cost=-value, value=value, unit=""))
        for trial, value in zip(history, (4.05, 1.1), strict=True)
    )
    fault = found(History(scored), replace(STUDY, objective=aim))["dominant_term"]
    assert "16 / rank_count" in fault.words
    assert fault.ordinals == (0,)


@pytest.mark.parametrize("kind", list(FailureKind))
def test_no_kind_of_failure_breaks_an_audit(kind):
    assert all(f.words for f in audit(STUDY, trials((testing.failed(kind), None)), ()))
