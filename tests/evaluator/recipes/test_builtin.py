"""The built-in recipe: a study's space with what it knows, and jobs, or why there is none."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.machine import OUR_FOLDER
from evaluator.rank.job import Job, Schedule, parse
from evaluator.recipes import builtin
from evaluator.recipes.builtin import COMPILER_MODULES, BuiltinRecipe
from records.errors import StudyError
from records.study import Constraint, Dimension, Objective, Range, SearchSpace, Study
from records.trial import Config
from records.workload import Message

GOLDEN = Path(__file__).with_name("golden") / "job.json"


def written(study, **knobs) -> Job:
    return parse(Job, BuiltinRecipe().job(study, Config(knobs)).files["job.json"])


def on(world_size, study, **workload):
    environment = replace(study.environment, world_size=world_size, ranks_per_node=world_size)
    asked = replace(study.workload, **workload)
    return replace(study, environment=environment, workload=asked)


def refusal(study, **knobs) -> str:
    with pytest.raises(StudyError) as refused:
        BuiltinRecipe().job(study, Config(knobs))
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_the_job_of_a_configuration_is_written_out_in_full(study):
    job = BuiltinRecipe().job(study, Config({"dp_shard": 2, "micro_batch": 4}))

    assert job.files == {"job.json": GOLDEN.read_text(encoding="utf-8").rstrip()}
    assert job.world_size == 2
    assert job.modules == ("evaluator.workloads.training",)
    assert (job.timeout_s, job.hang_after_s) == (60, study.measure.hang_after_s)
    assert job.environment == {}


def test_a_cold_start_names_no_path_of_this_machine_and_a_warm_one_what_is_imported(study):
    recipe, cold = BuiltinRecipe(), replace(study, launch=replace(study.launch, start="cold"))
    job = recipe.job(cold, Config({"tp": 2}))
    compiled, plain = (recipe.job(study, Config({"compile": on})) for on in (True, False))

    python = Path(sys.executable).name
    assert " ".join(job.argv) == (
        f"{python} -P -m torch.distributed.run --standalone --nproc-per-node=2 "
        f"--no-python {python} -P -m evaluator.rank.main job.json"
    )
    assert job.modules == ()
    assert {*compiled.modules} - {*plain.modules} == {*COMPILER_MODULES}


def test_ranks_of_a_study_with_a_python_start_there_warm_or_cold(study):
    launch = replace(study.launch, python="/job/bin/python")
    warm = BuiltinRecipe().job(replace(study, launch=launch), Config({"tp": 2}))
    start = str(OUR_FOLDER / "evaluator/rank/start.py")

    assert warm.python == "/job/bin/python"
    assert " ".join(warm.argv) == (
        "/job/bin/python -m torch.distributed.run --standalone --nproc-per-node=2 "
        f"--no-python /job/bin/python {start} evaluator.rank.main job.json"
    )


@pytest.mark.parametrize(
    ("release", "knobs", "words"),
    [
        ((2, 9), {"dp_shard": 2, "ep": 2}, "it takes torch 2.10, and the ranks have 2.9"),
        (
            (2, 6),
            {"pp": 2, "pipeline_schedule": "dualpipev"},
            "there is no such schedule: it takes torch 2.9, and the ranks have 2.6",
        ),
    ],
)
def test_what_the_torch_of_the_ranks_lacks_is_excluded_with_its_version(
    study, monkeypatch, release, knobs, words
):
    monkeypatch.setattr(builtin, "torch_release", lambda _: release)
    experts = {"expert_count": 4, "experts_per_token": 2, "expert_ffn_size": 64}
    wide = on(4, study, layer_count=4, **(experts if "ep" in knobs else {}))

    assert words in refusal(wide, **knobs)


@pytest.mark.parametrize("release", [(2, 13), None])
def test_the_newest_torch_lacks_nothing_and_without_one_nothing_is_known(release):
    assert builtin.rules_of_torch(release) == ()


def test_a_memory_budget_and_threads_reach_the_job_unless_a_knob_says_otherwise(study):
    launch = replace(study.launch, memory_budget_bytes=1 << 20, threads_per_rank=3)
    job = written(replace(study, launch=launch), tp=2)
    own = written(replace(study, launch=launch), threads_per_rank=2)

    assert (job.memory_budget_bytes, job.config.threads_per_rank) == (1 << 20, 3)
    assert own.config.threads_per_rank == 2


def test_the_degrees_multiply_to_the_ranks_that_are_started(study):
    wide = on(16, study, layer_count=4, head_count=4, kv_head_count=4)

    assert written(wide).world_size == 1
    assert written(wide, dp_replicate=2, tp=2, pp=2).world_size == 8
    assert written(wide, dp_shard=2, cp=4, micro_batch=2).world_size == 8


@pytest.mark.parametrize(
    ("knobs", "schedule", "stages"),
    [
        ({"pipeline_schedule": "zbv_zero_bubble"}, Schedule.ONE_F_ONE_B, 1),
        ({"pp": 2, "pipeline_schedule": "gpipe", "stages_per_rank": 4}, Schedule.GPIPE, 1),
        ({"pp": 2, "pipeline_schedule": "zbv_zero_bubble"}, Schedule.ZBV, 2),
        ({"pp": 2, "pipeline_schedule": "looped_bfs"}, Schedule.LOOPED_BFS, 2),
        (
            {"pp": 2, "pipeline_schedule": "interleaved_1f1b", "stages_per_rank": 4},
            Schedule.INTERLEAVED,
            4,
        ),
    ],
)
def test_a_rank_has_as_many_stages_as_its_schedule_asks_for(knobs, schedule, stages, study):
    config = written(on(2, study, layer_count=8), **knobs).config

    assert (config.pipeline_schedule, config.stages_per_rank) == (schedule, stages)


def test_inference_starts_the_server_and_training_knows_of_no_answers(study):
    serving = on(2, study, phase="inference", output_length=8)
    job = BuiltinRecipe().job(serving, Config({"tp": 2}))

    assert job.modules == ("evaluator.workloads.inference",)
    assert parse(Job, job.files["job.json"]).entry == "evaluator.workloads.inference:serve"
    assert parse(Job, job.files["job.json"]).workload.output_length == 8
    assert written(on(2, study, output_length=8)).workload.output_length == 0


# What cannot run is told in words, not left to the ranks.

LAYOUTS = [
    ({"dp_replicate": 4}, "breaks world: "),
    ({"micro_batch": 3}, "breaks batch: "),
    ({"tp": 2, "hidden": 1}, "'hidden' is not a knob of the builtin recipe"),
    ({"micro_batch": "4"}, 'micro_batch must be a whole number of at least 1, got "4"'),
    ({"activation_checkpointing": "ful"}, "activation_checkpointing must be none or selective or"),
    ({"pp": 2, "micro_batch": 8}, "breaks pipeline_fill: "),
    ({"pp": 2, "pipeline_schedule": "zbv_zero_bubble"}, "breaks folded_layers: "),
    ({"pp": 2, "pipeline_schedule": "interleaved_1f1b"}, "breaks looped_layers: "),
    ({"tp": 2, "compile": True}, "breaks compiled_slices: "),
    ({"ep": 2}, "breaks experts: "),
    ({"attention_backend": "cudnn"}, "breaks cpu_kernel: "),
    ({"compute_precision": "tf32"}, "breaks tf32: "),
    ({"compute_precision": "bf16", "cp": 2, "micro_batch": 4}, "breaks autocast_ring: "),
    ({"dp_replicate": 2, "ddp_comm_hook": "power_sgd"}, "breaks compressed: "),
    ({"dp_replicate": 2, "ddp_static_graph": True}, "breaks static_graph: "),
]


@pytest.mark.parametrize(("knobs", "sentence"), LAYOUTS)
def test_a_configuration_that_cannot_run_is_refused_with_the_rule_it_breaks(knobs, sentence, study):
    assert sentence in refusal(study, **knobs)


@pytest.mark.parametrize(
    ("workload", "knobs", "rule"),
    [
        ({"head_count": 6, "kv_head_count": 2, "hidden_size": 24}, {"tp": 4}, "heads"),
        ({"ffn_size": 66}, {"tp": 4}, "ffn"),
        ({"vocab_size": 66}, {"tp": 4}, "vocabulary"),
        ({"sequence_length": 34}, {"tp": 4}, "sequence"),
        ({"sequence_length": 33}, {"cp": 2}, "sequence"),
        ({"sequence_length": 34}, {"cp": 2}, "ring"),
        ({"head_count": 2}, {"cp": 4, "context_method": "ulysses"}, "exchanged_heads"),
        ({"layer_count": 6}, {"pp": 4}, "layers"),
        ({"layer_count": 8}, {"pp": 4, "pipeline_schedule": "dualpipev", "micro_batch": 2}, "fo"),
        (
            {"layer_count": 8, "global_batch": 12},
            {"pp": 4, "pipeline_schedule": "interleaved_1f1b", "micro_batch": 1},
            None,
        ),
        (
            {"layer_count": 8, "global_batch": 9},
            {"pp": 4, "pipeline_schedule": "interleaved_1f1b", "micro_batch": 1},
            "rounds",
        ),
    ],
)
def test_sizes_that_do_not_divide_are_refused(workload, knobs, rule, study):
    sizes = {"head_count": 4, "kv_head_count": 4, "layer_count": 8} | workload
    wide = on(4, study, **{**sizes, "kv_head_count": min(sizes["head_count"], 4)} | workload)

    if rule is None:
        assert written(wide, **knobs).world_size == 4
    else:
        assert f"breaks {rule}" in refusal(wide, **knobs)


@pytest.mark.parametrize(
    ("knobs", "rule"),
    [
        ({"fsdp_reshard": "always"}, "kept_parameters"),
        ({"activation_checkpointing": "selective"}, "recomputed_once"),
        ({"compile": True}, "compiled_stages"),
    ],
)
@pytest.mark.parametrize("schedule", ["zbv_zero_bubble", "interleaved_zero_bubble"])
def test_what_torch_would_train_wrongly_in_a_split_backward_pass_is_refused(
    schedule, knobs, rule, study
):
    wide = on(4, study, layer_count=8)
    layout = {"pp": 2, "dp_shard": 2, "pipeline_schedule": schedule}

    assert written(wide, **layout).world_size == 4
    assert f"breaks {rule}: " in refusal(wide, **layout, **knobs)


@pytest.mark.parametrize(
    ("precision", "asked", "taken"),
    [("fp32", "bf16", "bf16"), ("fp32", "parameter", "parameter"), ("bf16", "bf16", "parameter")],
)
def test_only_matrices_in_fp32_can_be_multiplied_in_another_format(precision, asked, taken, study):
    config = written(on(1, study, precision=precision), compute_precision=asked).config

    assert config.compute_precision == taken


def test_kernels_for_half_precision_take_what_autocast_hands_them(study):
    gpu = replace(study, environment=replace(study.environment, device="cuda"))
    single = on(1, gpu, precision="fp32")

    assert "breaks kernel_precision: " in refusal(single, attention_backend="flash")
    halved = written(single, attention_backend="flash", compute_precision="bf16")
    assert halved.config.attention_backend == "flash"


# Workloads.


@pytest.mark.parametrize("size", ["layer_count", "kv_head_count", "vocab_size"])
def test_a_model_size_that_is_missing_is_named(size, study):
    message = refusal(on(2, study, **{size: None}), tp=2)

    assert message.startswith(f"[workload] {size} is missing; the builtin recipe needs it")
    assert "llama-3.1-8b" in message


EXPERTS = {"expert_count": 8, "experts_per_token": 2, "expert_ffn_size": 16}


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"precision": "fp8"}, 'precision must be fp32 or bf16, got "fp8"'),
        ({"head_count": 3}, "hidden_size 32 does not divide by head_count 3"),
        ({"kv_head_count": 3, "head_count": 4}, "head_count 4 does not divide by kv_head_count 3"),
        ({"head_count": 32, "kv_head_count": 32}, "heads of size 1 do not divide into the pairs"),
        ({"phase": "inference"}, "output_length is missing"),
        (
            {"phase": "communication", "messages": (Message(collective="barrier"),)},
            'recipe = "collectives"',
        ),
        (EXPERTS | {"experts_per_token": None}, "needs experts_per_token, at least 1"),
        (EXPERTS | {"expert_ffn_size": None}, "needs expert_ffn_size, at least 1"),
        (EXPERTS | {"experts_per_token": 9}, "experts_per_token 9 is above expert_count 8"),
        (EXPERTS | {"dense_layer_count": 3}, "dense_layer_count 3 is above layer_count 2"),
    ],
)
def test_work_that_the_ranks_cannot_do_is_refused(workload, sentence, study):
    message = refusal(on(2, study, **workload))

    assert message.startswith("[workload] ")
    assert sentence in message


def test_experts_reach_the_job(study):
    work = written(on(2, study, **EXPERTS, shared_expert_count=1, dense_layer_count=1)).workload

    assert (work.expert_count, work.experts_per_token, work.expert_ffn_size) == (8, 2, 16)
    assert (work.shared_expert_count, work.dense_layer_count) == (1, 1)


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
