"""transformers, accelerate and DeepSpeed as recipes: arguments, configurations, what took hold."""

import json
import shlex
from dataclasses import replace

import pytest

from evaluator.recipes.catalog import framework_recipe
from evaluator.recipes.frameworks.flags import Flags
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer, Parsed
from records.errors import StudyError
from records.study import Study
from records.trial import Config
from search.study.spaces import completed
from search.study.study_file import builtin_study
from tests.support import records

TRAINER = "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()"
LOOP = 'parser.add_argument("--per_device_train_batch_size")'
LOOP_THAT_ACCUMULATES = f'{LOOP}; parser.add_argument("--gradient-accumulation-steps")'
VERSIONS = {"transformers": "5.23.0", "deepspeed": "0.19.8"}
TORCHRUN = "torchrun --nproc_per_node=2 train.py --per_device_train_batch_size 8 --data x"
ACCELERATE = "accelerate launch --use_fsdp --fsdp_version 1 --num_processes 2 train.py --lr 1"
SETTINGS = {"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1, "sub_group_size": 7}}


@pytest.fixture
def study(tmp_path):
    """Makes the study of a line that starts a script with this text, on GPUs."""

    def make(
        line: str = TORCHRUN,
        text: str = TRAINER,
        *,
        recipe: str = "transformers",
        device: str = "cuda",
        versions: dict[str, str] = VERSIONS,
        **values: object,
    ) -> Study:
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        machine = replace(records.ENVIRONMENT, device=device, world_size=2, ranks_per_node=2)
        parsed = Parsed(values={"--optim": "adamw_torch_fused", **values})
        answer = Answer(versions=versions, parsed=(parsed,), workload={"global_batch": 32})
        read = LaunchLine.of(shlex.split(line), tmp_path)
        return completed(framework_recipe(recipe).study(read, builtin_study(machine), answer))

    return make


def words(study: Study, **values: object) -> tuple[str, ...]:
    return framework_recipe(study.launch.recipe).flags(study, Config(values))


def knobs(study: Study) -> set[str]:
    return {dimension.name for dimension in study.space.dimensions}


# A Trainer.


def test_what_a_line_has_besides_knobs_stays_and_runs_are_bounded(study):
    asked = study(f"{TORCHRUN} --num_train_epochs 3 --save_steps=5 --use_cpu")

    assert asked.command.run[-3:] == ("--data", "x", "{args}")
    given = words(asked)
    assert {"--max_steps=8", "--seed=42", "--save_strategy=no", "--eval_strategy=no"} <= {*given}


def test_accumulation_keeps_the_global_batch(study):
    given = words(study(), micro_batch=4)
    assert "--per_device_train_batch_size=4" in given
    assert "--gradient_accumulation_steps=4" in given


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero0", "zero1", "zero3"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_argument_of_a_strategy_is_one_of_the_trainer(study, strategy, device):
    flags = Flags.of("transformers", None)[0]
    given = words(study(device=device), strategy=strategy, activation_checkpointing=True)
    assert list(flags.faults(given)) == []


def test_fsdp_is_a_configuration_that_also_checkpoints(study):
    asked = study(**{"--fsdp_config": '{"transformer_layer_cls_to_wrap": ["Block"]}'})

    given = words(
        asked, strategy="fsdp", reshard_after_forward=False, activation_checkpointing=True
    )

    (config,) = (w.partition("=")[2] for w in given if w.startswith("--fsdp_config="))
    assert json.loads(config) == {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["Block"],
        "reshard_after_forward": False,
        "activation_checkpointing": True,
    }
    assert not any(word.startswith("--gradient_checkpointing") for word in given)


def test_zero_keeps_the_configuration_of_the_line_but_for_its_knobs(study):
    asked = study(**{"--deepspeed": json.dumps(SETTINGS), "strategy": "zero1"})

    given = words(asked, strategy="zero2", overlap_comm=True, reduce_bucket_size=5000000)

    (config,) = (w.partition("=")[2] for w in given if w.startswith("--deepspeed="))
    assert json.loads(config)["zero_optimization"] == {
        "stage": 2,
        "sub_group_size": 7,
        "overlap_comm": True,
        "reduce_bucket_size": 5000000,
    }
    assert json.loads(config)["train_micro_batch_size_per_gpu"] == "auto"


def test_on_cpus_zero_is_neither_searched_nor_taken(study):
    asked = study(f"{TORCHRUN} --use_cpu", device="cpu")
    (refused,) = framework_recipe("transformers").broken(asked, {"strategy": "zero3"})
    assert "the only one once DeepSpeed trains" in refused
    assert "strategy" not in knobs(asked)
    assert "--use_cpu=true" in words(asked, strategy="ddp")


def test_without_deepspeed_no_zero_is_searched(study):
    asked = study(versions={"transformers": "5.23.0"})
    (strategy,) = (d for d in asked.space.dimensions if d.name == "strategy")
    assert strategy.choices == ("ddp", "fsdp")


def test_an_optimizer_that_is_no_adamw_is_left_alone(study):
    asked = study(f"{TORCHRUN} --optim adafactor", **{"--optim": "adafactor"})
    assert "optimizer" not in knobs(asked)
    assert "--optim=adafactor" in words(asked)


# A loop with accelerate.


def test_only_options_that_a_script_adds_itself_are_set(study):
    assert knobs(study(text=LOOP)) == set()
    accumulating = study(text=LOOP_THAT_ACCUMULATES)
    assert knobs(accumulating) == {"micro_batch"}
    assert words(accumulating, micro_batch=4) == (
        "--per_device_train_batch_size=4",
        "--gradient_accumulation_steps=4",
    )


@pytest.mark.parametrize(
    ("strategy", "asked_for"),
    [
        ("ddp", ("--multi_gpu",)),
        ("fsdp", ("--use_fsdp", "--fsdp_version=2", "--fsdp_reshard_after_forward=true")),
        ("zero3", ("--use_deepspeed", "--zero_stage=3")),
    ],
)
def test_the_launcher_of_accelerate_is_asked_for_the_strategy(study, strategy, asked_for):
    recipe, asked = framework_recipe("transformers"), study(ACCELERATE, LOOP)

    job = recipe.job(asked, Config({"strategy": strategy}))

    at = job.argv.index("hook_transformers.py")
    assert job.argv[:at] == (
        *("accelerate", "launch", "--num_processes=2", *asked_for, "--main_process_port=0"),
    )
    assert job.argv[at + 1 :] == (asked.command.run[-4], "--lr", "1")


# DeepSpeed.


@pytest.fixture
def zero_study(study):
    settings = {"--deepspeed_config": json.dumps({**SETTINGS, "train_batch_size": 32})}
    return study(
        "deepspeed --num_gpus 2 train.py --deepspeed --deepspeed_config=ds.json",
        recipe="deepspeed",
        **settings,
        **{"zero_optimization.stage": 1, "train_micro_batch_size_per_gpu": 4},
    )


def test_each_trial_has_its_own_configuration(zero_study):
    recipe = framework_recipe("deepspeed")
    config = Config({"zero_stage": 3, "micro_batch": 2, "prefetch_bucket_size": 5000000})

    job = recipe.job(zero_study, config)

    assert json.loads(job.files["ds_config.json"]) == {
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 7,
            "overlap_comm": False,
            "contiguous_gradients": True,
            "reduce_bucket_size": 500000000,
            "stage3_prefetch_bucket_size": 5000000,
            "stage3_param_persistence_threshold": 100000,
            "offload_optimizer": {"device": "none"},
            "offload_param": {"device": "none"},
        },
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
    }
    assert job.argv[-2:] == ("--deepspeed", "--deepspeed_config=ds_config.json")
    assert "zero_optimization.stage=3" in recipe.knob_arguments(zero_study, config)


def test_every_path_of_a_knob_is_one_of_deepspeed(zero_study):
    recipe, flags = framework_recipe("deepspeed"), Flags.of("deepspeed", None)[0]
    for knob in recipe.knobs(zero_study).values():
        for choice in knob.choices:
            assert list(flags.faults(knob.words(choice))) == []
    (fault,) = flags.faults(["zero_optimization.reduce_bucket_sise=5"])
    assert fault.endswith("did you mean zero_optimization.reduce_bucket_size?")


def test_a_configuration_that_nobody_read_is_refused(tmp_path):
    line = LaunchLine.of(["torchrun", "train.py"], tmp_path)
    with pytest.raises(StudyError, match="is in a file that your launch line names"):
        framework_recipe("deepspeed").study(line, builtin_study(records.ENVIRONMENT))
