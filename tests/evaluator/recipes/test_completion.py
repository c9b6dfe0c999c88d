"""A study's space with what the built-in recipe knows: conditions, defaults and rules."""

from dataclasses import replace

import pytest

from evaluator.recipes.builtin import BuiltinRecipe
from records.errors import StudyError
from records.study import Constraint, Dimension, Objective, Range, SearchSpace, Study


def searching(study: Study, *dimensions: Dimension, constraints=(), **changes) -> Study:
    space = SearchSpace(dimensions=dimensions, constraints=constraints)
    environment = replace(study.environment, world_size=4, ranks_per_node=4)
    workload = replace(study.workload, layer_count=4, head_count=4, kv_head_count=4)
    asked = {"space": space, "environment": environment, "workload": workload} | changes
    return BuiltinRecipe().complete(replace(study, **asked))


def knobs(*names: str) -> tuple[Dimension, ...]:
    return tuple(Dimension(name=name) for name in names)


def rules(study: Study) -> dict[str, str]:
    return {rule.name: rule.expression for rule in study.space.constraints}


def test_a_knob_that_is_only_named_gets_choices_condition_and_description(study):
    tp, schedule = searching(study, *knobs("tp", "pipeline_schedule")).space.dimensions

    assert tp.choices == (1, 2, 4)
    assert "slice" in tp.description
    assert schedule.when == "pp > 1"
    assert schedule.choices[:2] == ("gpipe", "1f1b")


@pytest.mark.parametrize("batch", [1, 2, 9, 12, 16, 97, 720, 999_999_937])
def test_micro_batches_are_all_that_divide_the_batch(batch, study):
    work = replace(study.workload, layer_count=4, head_count=4, kv_head_count=4, global_batch=batch)
    _, found = searching(study, *knobs("dp_shard", "micro_batch"), workload=work).space.dimensions

    small = [part for part in range(1, min(batch, 1000)) if batch % part == 0]
    assert found.choices == tuple(sorted({*small, *(batch // part for part in small), batch}))


def test_what_a_study_says_of_a_knob_stays_and_a_complete_study_as_it_is(study):
    given = Dimension(
        name="cp", range=Range(low=1, high=4, scale="doubling"), when="pp == 1", description="mine"
    )
    once = searching(study, given, *knobs("tp", "pp", "pipeline_schedule", "dp_shard"))

    assert once.space.dimensions[0] == given
    assert BuiltinRecipe().complete(once) == once


@pytest.mark.parametrize(
    ("dimension", "sentence"),
    [
        (Dimension(name="tpp"), "'tpp' is not a knob of the builtin recipe; did you mean 'tp'?"),
        (Dimension(name="xyz"), "it has dp_replicate, dp_shard, tp, cp, pp, ep, micro_batch"),
        (Dimension(name="tp", choices=(0, 1)), "tp must be a whole number of at least 1, got 0"),
        (Dimension(name="tp", range=Range(low=0, high=2)), "whole number of at least 1, got 0"),
        (Dimension(name="compile", choices=(0, 1)), "compile must be true or false, got 0"),
        (Dimension(name="context_method", choices=("rung",)), "must be ring or all_gather or uly"),
    ],
)
def test_a_knob_or_choice_that_the_recipe_does_not_have_is_refused(dimension, sentence, study):
    with pytest.raises(StudyError) as refused:
        searching(study, dimension)

    assert sentence in str(refused.value)


def test_every_knob_has_a_default_and_threads_are_the_launch_s(study):
    launch = replace(study.launch, threads_per_rank=2)
    defaults = searching(study, *knobs("tp"), launch=launch).space.defaults

    told = defaults["tp"], defaults["pipeline_schedule"], defaults["compile"]
    assert told == (1, "1f1b", False)
    assert defaults["threads_per_rank"] == 2
    assert {type(value) for value in defaults.values()} == {int, bool, str}


def test_only_rules_that_could_be_broken_are_told(study):
    assert {"heads", "memory"} & rules(searching(study, *knobs("tp"))).keys() == set()
    few = replace(study.workload, layer_count=4, head_count=2, kv_head_count=2)
    assert "heads" in rules(searching(study, *knobs("tp"), workload=few))
    assert "layers" not in rules(searching(study, *knobs("tp", "pp")))
    assert "pipeline_fill" in rules(searching(study, *knobs("tp", "pp", "micro_batch")))
    launch = replace(study.launch, memory_budget_bytes=1 << 26)
    assert "memory" in rules(searching(study, *knobs("tp"), launch=launch))


def test_a_rule_that_is_broken_whatever_is_searched_ends_the_study(study):
    odd = replace(study.workload, sequence_length=31, layer_count=4)
    with pytest.raises(StudyError, match=r"breaks expert_rows: .*, and none of these is searched"):
        searching(
            study,
            *knobs("micro_batch"),
            workload=replace(odd, expert_count=2, experts_per_token=1, expert_ffn_size=3),
        )


# How many ranks.


@pytest.mark.parametrize(
    ("objective", "sign"),
    [("step_time", "=="), ("tokens_per_s", "=="), ("0.5 * rank_count / 4 + step_time", "<=")],
)
def test_all_ranks_are_used_unless_the_objective_counts_them(objective, sign, study):
    asked = Objective(expression=objective, direction="minimize")

    told = rules(searching(study, *knobs("tp", "pp"), objective=asked))
    assert told["ranks"] == f"dp_replicate * dp_shard * tp * cp * pp {sign} world_size"


def test_a_study_s_own_rule_about_ranks_comes_first_and_other_names_are_taken(study):
    own, taken = (
        Constraint(name="ranks", expression="tp >= 2"),
        Constraint(name="batch", expression="micro_batch > 1"),
    )

    told = rules(searching(study, *knobs("tp", "pp"), constraints=(own,)))
    assert told["ranks"] == "tp >= 2"
    assert "<= world_size" in told["world"]
    with pytest.raises(StudyError, match="'batch' is the name of a rule of the builtin recipe"):
        searching(study, *knobs("tp", "micro_batch"), constraints=(taken,))
    with pytest.raises(StudyError, match="search one of them, or give a constraint 'ranks' of yo"):
        searching(study, *knobs("micro_batch"))


# Phases and experts.


def test_in_inference_a_knob_of_training_has_no_effect(study):
    serving = replace(
        study.workload, phase="inference", output_length=4, head_count=4, kv_head_count=4
    )
    completed = searching(study, *knobs("tp", "dp_replicate", "compile"), workload=serving)

    conditions = {d.name: d.when for d in completed.space.dimensions}
    assert conditions == {"tp": None, "dp_replicate": None, "compile": "phase == 'training'"}


def test_experts_are_spread_only_where_there_are_any(study):
    experts = replace(
        study.workload, layer_count=4, expert_count=8, experts_per_token=2, expert_ffn_size=16
    )
    told = rules(searching(study, *knobs("ep", "dp_shard"), workload=experts))

    assert told["expert_ranks"] == "dp_shard * cp % ep == 0"
    assert rules(searching(study, *knobs("ep", "tp")))["experts"] == "ep == 1"
