"""MaxText as a recipe: its mesh and batch as arguments, its rules, and the steps of its loop."""

import json
import os
import shlex
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.recipes.frameworks.flags import Flags
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.maxtext import MaxText
from evaluator.recipes.frameworks.parser import Answer, Parsed
from records.study import Study
from records.trial import Config
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study
from tests.support import records

RECIPE = MaxText()
IN_JOB = Path(__file__).parents[4] / "evaluator/recipes/frameworks/in_job"
LIBRARY = Path(__file__).parents[4] / "cclsearch.py"
SIZES = {
    "layer_count": 4,
    "hidden_size": 128,
    "head_count": 4,
    "kv_head_count": 4,
    "ffn_size": 352,
    "vocab_size": 512,
    "global_batch": 16,
    "sequence_length": 128,
}
RESOLVED = {
    "ici_data_parallelism": 1,
    "ici_fsdp_parallelism": 4,
    "ici_tensor_parallelism": 1,
    "per_device_batch_size": 4.0,
    "num_pipeline_repeats": -1,
    "remat_policy": "full",
    "scan_layers": True,
    "attention": "autoselected",
    "shard_optimizer_over_data": False,
}
LINE = (
    "XLA_FLAGS='--xla_dump_to=/d --xla_force_host_platform_device_count=8' "
    "python -m maxtext.trainers.pre_train.train base.yml run_name=x model_name=llama2-7b "
    "ici_fsdp_parallelism=-1 per_device_batch_size=4 profiler=xplane steps=900"
)


def study_of(*, device: str = "cpu", **sizes: int) -> Study:
    answer = Answer(
        versions={"maxtext": "0.2.5"},
        parsed=(Parsed(values=RESOLVED),),
        workload={**SIZES, **sizes},
    )
    base = builtin_study(replace(records.ENVIRONMENT, device=device, world_size=4))
    return completed(RECIPE.study(LaunchLine.of(shlex.split(LINE), Path()), base, answer))


def allowed(study: Study, **settings: int | str) -> bool:
    known = {**study.space.defaults, **settings}
    names = {**SIZES, "expert_count": 8, "world_size": 4, **known}
    return all(rule.broken(names) is None for rule in RECIPE.rules(study))


def test_a_line_keeps_what_is_no_knob_and_leaves_out_what_a_trial_sets():
    command = study_of().command

    assert command.run == (
        *("python", "-m", "maxtext.trainers.pre_train.train", "base.yml", "run_name=x"),
        *("model_name=llama2-7b", "{args}"),
    )
    assert study_of().space.defaults["dp_shard"] == 4


def test_the_cpu_devices_of_a_line_are_its_ranks_and_each_trial_has_as_many_as_the_study():
    line = LaunchLine.of(shlex.split(LINE), Path())
    count = "--xla_force_host_platform_device_count"

    assert RECIPE.started_ranks(line) == 8
    assert study_of().command.environment["XLA_FLAGS"] == f"--xla_dump_to=/d {count}=4"
    assert f"{count}=8" in study_of(device="cuda").command.environment["XLA_FLAGS"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dp": 4, "dp_shard": 1}, "per_device_batch_size=4 gradient_accumulation_steps=1"),
        (
            {"dp": 2, "dp_shard": 1, "tp": 2},
            "per_device_batch_size=2 gradient_accumulation_steps=2",
        ),
        (
            {"dp_shard": 1, "tp": 4, "micro_batch": 1},
            "per_device_batch_size=0.25 gradient_accumulation_steps=16",
        ),
    ],
)
def test_more_passes_make_up_for_a_smaller_batch_of_a_device(config, words):
    arguments = " ".join(RECIPE.flags(study_of(), Config(config)))

    assert words in arguments
    assert "init_weights_seed=42 data_shuffle_seed=42" in arguments


def test_a_pipeline_has_its_layers_in_equal_stages():
    config = Config({"dp_shard": 2, "pp": 2, "stages_per_rank": 1})

    flags = RECIPE.flags(study_of(), config)

    assert {"num_pipeline_repeats=1", "num_layers_per_pipeline_stage=2"} <= {*flags}
    assert not any("pipeline_repeats" in flag for flag in RECIPE.flags(study_of(), Config({})))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_configuration_is_arguments_of_the_recorded_version(device):
    flags, caveat = Flags.of("maxtext", "0.2.5")
    study = study_of(device=device)
    space = space_of(study).feasible

    refused = [fault for config in space for fault in flags.faults(RECIPE.flags(study, config))]

    assert (caveat, refused) == (None, [])
    assert space[0].values["micro_batch"] == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"tp": 8},
        {"ep": 3},
        {"dp_shard": 3},
        {"micro_batch": 8},
        {"cp": 3},
        {"activation_checkpointing": "none", "scan_layers": True},
        {"pp": 2, "micro_batch": 1},
        {"pp": 2, "stages_per_rank": 4},
    ],
)
def test_what_the_configuration_lets_pass_is_a_rule(settings):
    study = study_of()

    assert allowed(study)
    assert not allowed(study, **settings)


def test_an_unknown_policy_of_rematerialization_is_refused():
    flags, _ = Flags.of("maxtext", None)

    (fault,) = flags.faults(["remat_policy=bogus"])

    assert fault.startswith("remat_policy is one of custom, full, minimal,")


def test_experts_are_an_axis_only_of_a_model_that_has_them():
    searched = [d.name for d in study_of(expert_count=8).space.dimensions]

    assert "ep" in searched
    assert "ep" not in [d.name for d in study_of().space.dimensions]


def test_devices_of_experts_shard_the_other_weights_in_the_estimate():
    meaning = RECIPE.meaning(study_of(), {"dp": 1, "dp_shard": 2, "ep": 2, "micro_batch": 4})

    assert (meaning["dp_shard"], meaning["ep"]) == (4, 2)


# A stand-in for MaxText and JAX: the loop calls what the loop of MaxText calls, in its order.
STAND_IN = {
    "jax/__init__.py": """
        from . import profiler
        process_count, device_count = lambda: 1, lambda: 4
        live_arrays, block_until_ready = lambda: [0], lambda arrays: arrays
        """,
    "jax/profiler.py": """
        import contextlib, pathlib
        def start_trace(folder):
            global profile
            profile = pathlib.Path(folder) / "plugins/profile/now/vm.xplane.pb"
        def stop_trace():
            profile.parent.mkdir(parents=True)
            profile.write_text("a profile")
        StepTraceAnnotation = lambda name, step_num: contextlib.nullcontext()
        """,
    "maxtext/common/profiler.py": """
        class Profiler:
            def maybe_activate_profiler(self, step, state):
                pass
        """,
    "maxtext/common/metric_logger.py": """
        import types
        class MetricLogger:
            config = types.SimpleNamespace(global_batch_size_to_train_on=2, max_target_length=8)
            def buffer_and_write_metrics(self, metrics, step, step_time_delta=None):
                pass
        """,
    "maxtext/trainers/pre_train/train.py": """
        import sys
        import jax
        from maxtext.common.metric_logger import MetricLogger
        from maxtext.common.profiler import Profiler
        for step in range(5):
            Profiler().maybe_activate_profiler(step, {})
            scalars = {"learning/loss": 3.0 - step, "learning/raw_grad_norm": 2.0}
            MetricLogger().buffer_and_write_metrics({"scalar": scalars}, step, None)
        print(sys.argv[1:])
        """,
}


def test_the_hook_reports_the_steps_of_the_loop_and_profiles_the_last(tmp_path):
    for name, text in STAND_IN.items():
        path = tmp_path / "installed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    for source in (LIBRARY, IN_JOB / "hook.py", IN_JOB / "hook_maxtext.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "trace").mkdir()
    counts = {"WARMUP_STEPS": "1", "TIMED_STEPS": "3", "PROFILED_STEPS": "1"}
    folders = {"TRACE_DIR": str(tmp_path / "trace"), "CCLSEARCH_PYTHONPATH": "installed"}

    ended = subprocess.run(
        [sys.executable, "-S", "hook_maxtext.py", "-m", "maxtext.trainers.pre_train.train", "a=1"],
        cwd=tmp_path,
        env={"PATH": os.defpath, **counts, **folders},
        capture_output=True,
        text=True,
        check=True,
    )

    report = json.loads((tmp_path / "trace/steps/rank0.json").read_text())
    assert ended.stdout == "['a=1']\n"
    assert [len(report["warmup_times_s"]), len(report["step_times_s"])] == [1, 3]
    assert report["losses"] == [3.0, 2.0, 1.0, 0.0, -1.0]
    assert report["grad_norms"] == [2.0] * 5
    assert (report["tokens"], report["device_count"]) == ([16] * 5, 4)
    assert (tmp_path / "trace/rank0.xplane.pb").read_text() == "a profile"
