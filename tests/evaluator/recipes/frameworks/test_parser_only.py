"""Megatron-LM and SGLang by their recorded flags and rules: no line that fails reaches a launch.

The log is in the format in which Megatron-LM 0.19.2 prints, as its training.py has it.
"""

import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from evaluator.ports import JobResult
from evaluator.recipes.catalog import framework_recipe
from evaluator.recipes.frameworks.flags import Flags
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer, Parsed
from evaluator.recipes.knobs import KnobTable
from policies.space import Space
from records.study import Environment
from records.trial import Config, Failed
from tests.support.records import study as any_study

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
LINES = {
    "megatron": "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4 "
    "--sequence-parallel --micro-batch-size 2 --global-batch-size 128 --save checkpoints "
    "--log-interval 100 --lr 3e-4 --bf16",
    "sglang": "python -m sglang.launch_server --model-path model --tp-size 2 --port 30000",
}


def tables():
    for path in sorted((HERE / "wrong_lines").glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for wrong in table["wrong"]:
            yield pytest.param(path.stem, table["work"], wrong, id=f"{path.stem}: {wrong['line']}")


@pytest.fixture
def study_of(tmp_path):
    (tmp_path / "pretrain_gpt.py").touch()
    return partial(_study, tmp_path)


def _study(folder, name, **work):
    recipe = framework_recipe(name)
    table = tomllib.loads((HERE / f"wrong_lines/{name}.toml").read_text(encoding="utf-8"))
    gpus = Environment(
        name="eight-gpus", device="cuda", accelerator="H100", world_size=8, ranks_per_node=8
    )
    base = replace(any_study(), environment=gpus, contexts=())
    known = {**table["work"], **work}
    answer = Answer(
        versions={recipe.table.packages[0]: Flags.of(name, None)[0].version},
        parsed=(Parsed(),),
        workload=known,
    )
    given = LaunchLine.of(LINES[name].split(), folder)
    study = recipe.study(given, base, answer)
    return recipe, recipe.complete(study)


@pytest.mark.parametrize(("name", "work", "wrong"), [*tables()])
def test_a_wrong_line_is_refused_with_its_reason_before_a_launch(study_of, name, work, wrong):
    recipe, study = study_of(name)
    workload = replace(study.workload, **{**work, **wrong.get("work", {})})

    refusals = list(recipe.refusals(replace(study, workload=workload), wrong["line"].split()))

    assert any(wrong["reason"] in refusal for refusal in refusals), refusals


@pytest.mark.parametrize("name", LINES)
def test_configurations_are_spelled_as_recorded_and_the_recorded_flags_refuse_none(
    study_of, tmp_path, name
):
    recipe, study = study_of(name)
    flags, _ = Flags.of(name, None)
    space = Space(study.space, study.workload, study.environment, recipe.derived(study))
    golden = GOLDEN / f"{name}.txt"

    seed = Config(KnobTable(study, recipe.knobs(study)).live(study.space.defaults))
    chosen = [seed, *space.sample(10, Random(1))]
    spelled = "\n".join(" ".join(recipe.job(study, config).argv) for config in chosen)
    spelled = spelled.replace(str(tmp_path), "FOLDER") + "\n"

    (tmp_path / golden.name).write_text(spelled, encoding="utf-8")
    assert spelled == golden.read_text(encoding="utf-8"), f"cp {tmp_path / golden.name} {golden}"
    configurations = space.sample(200, Random(0))
    assert len(configurations) == 200
    for config in configurations:
        words = [w for w in recipe.job(study, config).argv if w != f"hook_{name}.py"]
        assert list(flags.faults(LaunchLine.of(words, Path()).arguments)) == []


@pytest.fixture
def read_log(study_of, tmp_path):
    log = (HERE / "logs/megatron_0.19.2_print_format.log").read_text(encoding="utf-8")

    def read(old="", new=""):
        recipe, study = study_of("megatron")
        (tmp_path / "trace").mkdir()
        (tmp_path / "job.log").write_text(log.replace(old, new), encoding="utf-8")
        job = recipe.job(study, Config({}))
        result = JobResult(reason="finished", wall_s=20.0, workdir=tmp_path)
        return recipe.read(study, job, result, 0)

    return read


def test_megatron_prints_times_losses_and_gradient_norms(read_log):
    measurement = read_log().measurement

    assert len(measurement.step_times_s) == 8
    assert measurement.warmup_times_s[7] == pytest.approx((8.1234, 0.9125))
    assert measurement.step_times_s[7] == pytest.approx((0.9011, 0.9002, 0.9027, 0.8999, 0.9033))
    assert measurement.losses[:2] == (11.875, 11.75)
    assert measurement.grad_norms[:2] == (2.9, 2.8)
    assert measurement.printed


def test_an_argument_that_megatron_changed_did_not_take_hold(read_log):
    failed = read_log(
        old="sequence_parallel ............................... True",
        new="sequence_parallel ............................... False",
    )

    assert isinstance(failed, Failed)
    assert failed.message == ("--sequence-parallel=true did not take hold: Megatron made it False")


@pytest.mark.parametrize(("zero_stage", "connections"), [(1, "1"), (3, "8")])
def test_megatron_gets_the_connections_to_a_gpu_that_its_checks_want(
    study_of, zero_stage, connections
):
    recipe, study = study_of("megatron")

    job = recipe.job(study, Config({"zero_stage": zero_stage}))

    assert job.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == connections


def test_data_parallel_ranks_of_megatron_are_those_left_over(study_of):
    recipe, study = study_of("megatron")
    settings = {**study.space.defaults, "tp": 2, "pp": 2, "stages_per_rank": 2, "zero_stage": 1}

    meaning = recipe.meaning(study, settings)

    assert (meaning["dp_replicate"], meaning["dp_shard"]) == (1, 2)
    assert meaning["pipeline_schedule"] == "interleaved_1f1b"
