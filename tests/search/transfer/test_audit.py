"""What an audit finds in a history, and that it finds nothing in a sound one."""

from dataclasses import replace

import pytest

from evaluator.metrics.base import PUBLISHED_SCORE
from records.study import Constraint, Environment, Objective, Origin
from records.trial import (
    Failed,
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


def told(name, value):
    return MetricValue(name=name, value=value, unit="", better="lower", version=0)


def imported(step_s, tokens=1024, **metrics):
    """What a record tells of a launch that took so long."""
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
        metrics=(
            told("step_time", step_s),
            told("tokens_per_s", tokens / step_s),
            *(told(name, value) for name, value in metrics.items()),
        ),
    )


def trials(*made):
    """A history of these outcomes, each with its settings."""
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
    assert audit(STUDY, trials((testing.failed(), {"tp": 1})), ()) == ()


def test_unequal_work_says_who_leads_per_token():
    history = trials(
        (imported(1.0, 1024), {"tp": 1}),
        (imported(2.0, 8192), {"tp": 2}),
        (imported(4.0, 1024), {"tp": 4}),
    )

    fault = found(history)["unequal_work"]

    assert fault.ordinals == (1,)
    assert "1024 to 8192 tokens" in fault.words
    assert "per token trial 1 leads with 4096 tokens/s, where trial 0 has 1024" in fault.words


def test_work_may_differ_where_the_objective_counts_tokens():
    study = replace(STUDY, objective=Objective(expression="tokens_per_s", direction="maximize"))
    history = trials((imported(1.0, 1024), {"tp": 1}), (imported(2.0, 8192), {"tp": 2}))

    assert "unequal_work" not in found(history, study)


def test_the_luckiest_of_equal_launches_is_named_with_their_median():
    history = trials(
        (imported(1.10), {"tp": 1, "idle": False}),
        (imported(1.00), {"tp": 1, "idle": True}),
        (imported(1.02), {"tp": 2, "idle": True}),
    )

    named = found(history)

    assert named["best_of_noise"].ordinals == (0, 1)
    assert "10 % apart" in named["best_of_noise"].words
    assert "by medians trial 2 leads" in named["best_of_noise"].words
    assert named["within_noise"].ordinals == (1, 2)
    assert named["dead_knob"].ordinals == (1,)


def test_a_best_of_one_launch_is_named_and_one_that_was_launched_again_is_not():
    history = trials((imported(1.0), {"tp": 1}), (imported(2.0), {"tp": 2}))
    again = Repeat(series=2, round=0, ordinal=0, outcome=imported(1.0), purpose=Purpose.CONFIRM)

    assert found(history)["one_sample"].ordinals == (0,)
    assert "one_sample" not in found(history, repeats=(again,))


def test_few_steps_are_named():
    few = testing.measured()
    steps = replace(few.measurement, step_times_s=((0.5, 0.5), (0.5, 0.5)))
    history = trials((replace(few, measurement=steps), {"tp": 1}))

    assert "timed over 2 steps" in found(history)["few_steps"].words


def test_a_result_that_different_settings_share_to_the_last_digit_is_named():
    same = {PUBLISHED_SCORE: 215877426.0}
    history = trials(
        (imported(1.0, **same), {"tp": 1}),
        (imported(2.0, **same), {"tp": 2}),
        (imported(3.0, **{PUBLISHED_SCORE: 2.0}), {"tp": 4}),
        (imported(4.0, **{PUBLISHED_SCORE: 2.0}), {"tp": 8}),  # so few digits meet by chance
    )

    assert found(history)["same_result"].ordinals == (0, 1)


def test_a_term_of_devices_that_decides_the_score_is_named():
    study = replace(
        STUDY,
        objective=Objective(expression="16/rank_count + 0.1/step_time", direction="maximize"),
    )
    made = [(imported(s, rank_count=ranks), {"tp": ranks}) for ranks, s in ((4, 2.0), (16, 1.0))]
    history = trials(*made)
    scored = tuple(
        replace(trial, score=Score(cost=-value, value=value, unit=""))
        for trial, value in zip(history, (4.05, 1.1), strict=True)
    )

    fault = found(History(scored), study)["dominant_term"]

    assert "16 / rank_count" in fault.words
    assert fault.ordinals == (0,)


def test_infrastructure_and_caches_are_named_of_others_only():
    failures = [
        (testing.failed(FailureKind.INFRASTRUCTURE), {"tp": 2}),
        (testing.failed(FailureKind.DUPLICATE), {"tp": 1}),
    ]
    history = trials((imported(1.0), {"tp": 1}), *failures)

    named, ours = found(history), found(history, replace(STUDY, origin=None))

    assert (named["infrastructure"].ordinals, named["cache_replays"].ordinals) == ((1,), (2,))
    assert not {"infrastructure", "cache_replays"} & ours.keys()


def test_trials_that_a_rule_excludes_are_named_with_the_rule():
    ranks = Constraint(name="ranks", expression="tp * dp <= world_size")
    machine = Environment(name="m", device="cuda", accelerator="a", world_size=4, ranks_per_node=4)
    space = replace(STUDY.space, constraints=(ranks,))
    study = replace(STUDY, space=space, environment=machine)
    history = trials(
        (imported(1.0), {"tp": 2, "dp": 2}),
        (testing.failed(), {"tp": 4, "dp": 2}),
        (testing.failed(), {"tp": 8}),  # the rule cannot be asked
    )

    fault = found(history, study)["broken_rules"]

    assert fault.ordinals == (1,)
    assert "breaks ranks: tp * dp <= world_size with dp=2, tp=4, world_size=4" in fault.words


def test_a_score_that_the_objective_does_not_give_is_named():
    history = trials(
        (imported(1.0, **{PUBLISHED_SCORE: 1.0}), {"tp": 1}),
        (imported(2.0, **{PUBLISHED_SCORE: 3.0}), {"tp": 2}),
    )

    assert found(history)["other_score"].ordinals == (1,)


def test_a_failed_seed_and_a_best_at_the_end_are_named():
    history = trials(
        (testing.failed(), {"tp": 1}), (imported(2.0), {"tp": 2}), (imported(1.0), {"tp": 4})
    )

    named = found(history)

    assert named["failed_seed"].ordinals == (0,)
    assert named["best_is_last"].ordinals == (2,)


@pytest.mark.parametrize("kind", list(FailureKind))
def test_no_kind_of_failure_breaks_an_audit(kind):
    assert isinstance(testing.failed(kind), Failed)
    assert all(f.words for f in audit(STUDY, trials((testing.failed(kind), None)), ()))
