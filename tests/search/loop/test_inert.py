"""Knobs that a framework ignores: what shows it, and what follows for the search and its result."""

from dataclasses import replace

from evaluator.objective import scoring_of
from records.study import Dimension, Measure
from records.trial import CollectiveTime, Config, Diagnosis, History, Measured, Purpose, Repeat
from search.loop.inert import InertKnob, equal_configs, inert_knobs
from search.loop.leader import winner_of
from search.strategies.base import worth_trying
from tests.support.records import measured, study, trial

STUDY = study(Dimension(name="strategy", choices=("ddp", "zero1", "fsdp")))
SCORING, MEASURE = scoring_of(STUDY), Measure(confirm_rounds=2)
DDP = ("all_reduce",)


def ran(work: str | None, step_s: float = 1.0, losses=(4.0, 3.0), kinds=DDP) -> Measured:
    """An outcome whose traces show this work, with these kinds of collectives."""
    outcome = measured(step_s)
    collectives = tuple(
        CollectiveTime(
            kind=kind,
            group_size=2,
            ranks=(0, 1),
            group_count=1,
            crosses_nodes=None,
            call_count=3.0,
            bytes=1024.0,
            exposed_s=0.1,
            hidden_s=0.0,
        )
        for kind in kinds
    )
    diagnosis = Diagnosis(
        compute_s=0.5,
        exposed_communication_s=0.1,
        hidden_communication_s=0.0,
        copy_s=0.0,
        idle_s=0.0,
        collectives=collectives,
        work_digest=work,
    )
    measurement = replace(outcome.measurement, losses=losses)
    return replace(outcome, measurement=measurement, diagnosis=diagnosis)


def past(*rows):
    """Trials of a strategy and a micro-batch each, with their outcomes."""
    return History(
        tuple(
            trial(n, outcome, {"strategy": strategy, "micro_batch": micro_batch})
            for n, (strategy, micro_batch, outcome) in enumerate(rows)
        )
    )


def inert(history: History) -> tuple[InertKnob, ...]:
    return inert_knobs(history, SCORING, MEASURE)


SILENT = past(
    ("ddp", 4, ran("a", 1.00)),
    ("zero1", 4, ran("a", 1.02)),
    ("fsdp", 4, ran("a", 0.97)),
    ("ddp", 8, ran("b", 0.8)),
)


def test_values_that_ran_equal_work_are_named_with_their_trials():
    values = ("ddp", "zero1", "fsdp")
    assert inert(SILENT) == (InertKnob(name="strategy", values=values, ordinals=(0, 1, 2)),)


def test_only_the_values_that_did_the_same_are_named():
    history = past(
        ("ddp", 4, ran("a")), ("zero1", 4, ran("a")), ("fsdp", 4, ran("c", kinds=("all_gather",)))
    )

    (knob,) = inert(history)
    assert knob.values == ("ddp", "zero1")


def test_equal_times_alone_never_show_that_a_knob_is_inert():
    assert inert(past(("ddp", 4, ran(None)), ("fsdp", 4, ran(None)))) == ()
    assert inert(past(("ddp", 4, ran("a")), ("fsdp", 4, ran("b")))) == ()


def test_other_losses_are_other_work():
    assert inert(past(("ddp", 4, ran("a")), ("fsdp", 4, ran("a", losses=(4.0, 2.9))))) == ()


def test_a_clear_difference_in_time_is_an_effect_even_if_the_work_is_equal():
    assert inert(past(("ddp", 4, ran("a", 1.0)), ("fsdp", 4, ran("a", 0.5)))) == ()


def test_values_that_differ_with_another_setting_are_not_one():
    history = past(
        ("ddp", 4, ran("a")),
        ("fsdp", 4, ran("a")),
        ("ddp", 8, ran("b")),
        ("fsdp", 8, ran("c")),
    )

    assert inert(history) == ()


def test_no_launch_is_spent_on_what_differs_in_inert_values_alone():
    new = Config({"strategy": "ddp", "micro_batch": 16})
    same = Config({"strategy": "fsdp", "micro_batch": 8})

    assert worth_trying(STUDY, SILENT, [same, new]) == [new]
    assert worth_trying(STUDY, SILENT, [same]) == [same]


def test_a_value_inert_in_one_kind_of_job_is_tried_in_another():
    """Megatron ignores sequence parallelism without tensor parallelism, and only then."""
    history = past(
        ("ddp", 4, ran("a")),
        ("fsdp", 4, ran("a")),
        ("ddp", 8, ran("b", kinds=("all_reduce", "all_gather"))),
    )

    assert equal_configs(history, SCORING, MEASURE) == {
        trial.config for trial in history.trials[:2]
    }


def confirming(*rounds):
    """Launches of a final: the step times of each trial, by its number."""
    return [
        Repeat(series=4, round=n, ordinal=ordinal, outcome=ran("a", s), purpose=Purpose.CONFIRM)
        for n, times in enumerate(rounds)
        for ordinal, s in times.items()
    ]


def test_the_seed_is_announced_before_a_trial_that_did_the_same_work():
    undecided = confirming({0: 1.0, 2: 0.8}, {0: 1.0, 2: 1.1}, {0: 1.0, 2: 0.9})
    history = replace(SILENT, trials=SILENT.trials[:3])

    assert winner_of(history, undecided, SCORING, MEASURE) == 0


def test_a_trial_that_is_shown_to_be_faster_wins_whatever_its_traces_say():
    faster = confirming(*({0: 1.0 + n / 1000, 2: 0.5 + n / 1000} for n in range(6)))
    history = replace(SILENT, trials=SILENT.trials[:3])

    assert winner_of(history, faster, SCORING, MEASURE) == 2
