"""Megatron-LM and SGLang by their recorded flags and rules: no line that fails reaches a launch."""

import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from evaluator.recipes.catalog import framework_recipe
from evaluator.recipes.frameworks.flags import Flags
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer, Parsed
from evaluator.recipes.knobs import KnobTable
from policies.space import Space
from records.study import Environment
from records.trial import Config
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
def test_no_configuration_has_an_argument_that_the_recorded_flags_refuse(study_of, name):
    recipe, study = study_of(name)
    flags, _ = Flags.of(name, None)
    space = Space(study.space, study.workload, study.environment, recipe.derived(study))

    configurations = space.sample(200, Random(0))

    assert len(configurations) == 200
    for config in configurations:
        arguments = LaunchLine.of(recipe.job(study, config).argv, Path()).arguments
        assert list(flags.faults(arguments)) == []


@pytest.mark.parametrize("name", LINES)
def test_configurations_are_spelled_as_recorded(study_of, tmp_path, name):
    recipe, study = study_of(name)
    space = Space(study.space, study.workload, study.environment, recipe.derived(study))
    golden = GOLDEN / f"{name}.txt"

    seed = Config(KnobTable(study, recipe.knobs(study)).live(study.space.defaults))
    chosen = [Config({}), seed, *space.sample(10, Random(1))]
    spelled = "\n".join(" ".join(recipe.job(study, config).argv) for config in chosen)
    spelled = spelled.replace(str(tmp_path), "FOLDER") + "\n"

    (tmp_path / golden.name).write_text(spelled, encoding="utf-8")
    assert spelled == golden.read_text(encoding="utf-8"), f"cp {tmp_path / golden.name} {golden}"
