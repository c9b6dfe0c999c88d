"""TorchTitan's recipe: its argument lists by version, its rules, and what its hook measures."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.machine import local_environment
from evaluator.recipes.frameworks.flags import Flags
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer, Parsed
from evaluator.recipes.frameworks.torchtitan import TorchTitan
from records.study import Environment
from records.trial import Config
from search.study.spaces import completed
from search.study.study_file import builtin_study

IN_JOB = Path(__file__).parents[4] / "evaluator/recipes/frameworks/in_job"
EIGHT_GPUS = Environment(
    name="eight", device="cuda", accelerator="H100", world_size=8, ranks_per_node=8
)
LINES = {
    "0.2.2": "--job.config_file llama3.toml --job.dump_folder out --training.seq-len 4096",
    "0.3.0": "--module llama3 --config llama3_8b --dump-folder out activation-checkpoint:full "
    "--activation-checkpoint.debug",
}
WORK = {
    "global_batch": 32,
    "sequence_length": 4096,
    "layer_count": 32,
    "hidden_size": 4096,
    "head_count": 32,
    "kv_head_count": 8,
    "ffn_size": 14336,
    "vocab_size": 128256,
    "precision": "bf16",
    "name": "llama3-8B",
}


def study_of(tmp_path, version="0.2.2", environment=EIGHT_GPUS, fixed=None, **values):
    """The study of a launch line, as the parser of a version reads it."""
    python = tmp_path / "bin/torchrun"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f"#!{sys.executable}\n", encoding="utf-8")
    python.chmod(0o755)
    words = ("--nproc-per-node", "8", "-m", "torchtitan.train", *LINES[version].split())
    line = LaunchLine.of((str(python), *words), tmp_path)
    recipe = TorchTitan()
    knobs = recipe.knobs_of(Flags.of("torchtitan", version)[0])
    resolved = {knobs[name].flag: value for name, value in values.items()}
    answer = Answer(
        versions={"torchtitan": version, "torch": "2.10.0"},
        parsed=(Parsed(values=resolved),),
        workload=WORK,
        fixed=fixed or {},
    )
    base = replace(builtin_study(local_environment()), environment=environment)
    return completed(recipe.study(line, base, answer))


@pytest.mark.parametrize(
    ("version", "argv"),
    [
        (
            "0.2.2",
            "hook_torchtitan.py -m torchtitan.train --job.config_file llama3.toml "
            "--training.seq-len 4096 "
            "--parallelism.data_parallel_replicate_degree=1 "
            "--parallelism.data_parallel_shard_degree=2 --parallelism.tensor_parallel_degree=4 "
            "--parallelism.context_parallel_degree=1 --parallelism.pipeline_parallel_degree=1 "
            "--training.local_batch_size=4 --activation_checkpoint.mode=selective "
            "--activation_checkpoint.selective_ac_option=op --compile.enable "
            "--parallelism.enable_async_tensor_parallel --parallelism.disable_loss_parallel "
            "--parallelism.fsdp_reshard_after_forward=never "
            "--training.global_batch_size=32 --debug.seed=42",
        ),
        (
            "0.3.0",
            "hook_torchtitan.py -m torchtitan.train --module llama3 --config llama3_8b "
            "--parallelism.data_parallel_replicate_degree=1 "
            "--parallelism.data_parallel_shard_degree=2 --parallelism.tensor_parallel_degree=4 "
            "--parallelism.context_parallel_degree=1 --parallelism.pipeline_parallel_degree=1 "
            "--training.local_batch_size=4 --compile.enable "
            "--compile.enable_async_tensor_parallel --parallelism.enable_sequence_parallel "
            "--parallelism.fsdp_reshard_after_forward=never --training.no_disable_cuda_graphs "
            "--training.global_batch_size=32 --debug.seed=42 activation-checkpoint:selective",
        ),
    ],
)
def test_a_configuration_is_spelled_as_the_version_of_the_job_takes_it(tmp_path, version, argv):
    study = study_of(tmp_path, version, dp_shard=8)
    values = {
        "dp_shard": 2,
        "tp": 4,
        "micro_batch": 4,
        "activation_checkpointing": "selective",
        "selective_checkpointing": "op",
        "compile": True,
        "async_tp": True,
        "loss_parallel": False,
        "fsdp_reshard": "never",
    }
    own = {d.name for d in study.space.dimensions}

    job = TorchTitan().job(study, Config(values={n: v for n, v in values.items() if n in own}))

    words = list(job.argv[job.argv.index("hook_torchtitan.py") :])
    assert words == argv.split()
    assert list(Flags.of("torchtitan", version)[0].faults(words[3:])) == []


def test_what_the_parser_resolved_is_the_seed_and_what_is_installed_limits_the_search(tmp_path):
    given = {"dp_shard": 8, "activation_checkpointing": "full", "micro_batch": 2, "compile": True}
    study = study_of(tmp_path, fixed={"pp": "torch is too old"}, **given)

    searched = {dimension.name: dimension.choices for dimension in study.space.dimensions}
    assert given.items() <= study.space.defaults.items()
    assert searched["micro_batch"] == (2, 1, 4, 8, 16, 32)
    assert not {"pp", "ep", "cpu_offload", "cuda_graphs"} & searched.keys()
    assert study.workload.tokens_per_step == 32 * 4096


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("batch", {"dp_shard": 8, "micro_batch": 8}),
        ("heads", {"tp": 16}),
        ("sequence", {"cp": 3}),
        ("dense", {"ep": 2}),
        ("pipeline_batch", {"pp": 2, "micro_batch": 1, "pipeline_micro_batch": 2}),
        ("stages", {"pp": 32, "pipeline_schedule": "LoopedBFS"}),
        ("pipeline_fill", {"pp": 8, "micro_batch": 4}),
        ("rounds", {"pp": 4, "micro_batch": 9, "pipeline_schedule": "Interleaved1F1B"}),
        ("folded_fill", {"pp": 4, "micro_batch": 4, "pipeline_schedule": "DualPipeV"}),
        ("split_backward", {"pp": 2, "compile": True, "pipeline_schedule": "ZBVZeroBubble"}),
        ("kept_parameters", {"pp": 2, "fsdp_reshard": "always", "pipeline_schedule": "DualPipeV"}),
        ("budget", {"activation_checkpointing": "memory_budget"}),
        ("gradients", {"dp_replicate": 8}),
        ("gradients", {"pp": 2}),
    ],
)
def test_what_the_parser_lets_pass_and_would_not_train_is_excluded(rule, values, tmp_path):
    study = study_of(tmp_path, dp_shard=8)
    names = {
        **{name: getattr(study.workload, name, None) for name in (*WORK, "expert_count")},
        "device": "cuda",
        "expert_count": 0,
        **{name: knob.default for name, knob in TorchTitan().knobs(study).items()},
        "dp_shard": 1,
        "micro_batch": 1,
        **values,
    }
    rules = {each.constraint.name: each for each in TorchTitan().rules(study)}

    broken = rules[rule].broken(names)

    assert broken is not None
    assert rules[rule].constraint.reason in broken


@pytest.mark.parametrize(
    ("seed", "allowed"),
    [
        ({"dp_shard": 8}, {"dp_replicate": 2, "dp_shard": 4}),
        ({"dp_shard": 8}, {"tp": 8}),
        ({"dp_replicate": 8, "dp_shard": 1}, {"dp_replicate": 8}),
        ({"pp": 2, "dp_shard": 4}, {"pp": 8}),
    ],
)
def test_in_0_2_a_search_stays_with_gradients_of_the_scale_of_the_launch_line(
    seed, allowed, tmp_path
):
    study = study_of(tmp_path, **seed)
    (gradients,) = (r for r in TorchTitan().rules(study) if r.constraint.name == "gradients")
    layout = {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1}

    assert gradients.broken({**layout, **allowed}) is None
    assert gradients.broken({**layout, "dp_replicate": 4}) is not None
    newer = TorchTitan().rules(study_of(tmp_path, "0.3.0", dp_shard=8))
    assert "gradients" not in {rule.constraint.name for rule in newer}


TRAINER = """
import sys, types
import torch

class Config(types.SimpleNamespace):
    pass

class Dims:
    dp_replicate = dp_shard = 1
    pp_enabled = False
    def get_optional_mesh(self, name):
        return None

class Metrics:
    def should_log(self, step):
        return False
    def log(self, step, loss, most, grad_norm, extra_metrics=None):
        print(f"step {step} loss {loss:.3f}")

class Trainer:
    def __init__(self, config):
        self.config, self.step, self.parallel_dims = config, 0, Dims()
        head = torch.nn.Linear(8, 32, bias=False)
        self.model_parts = [torch.nn.Sequential(torch.nn.Embedding(32, 8), head)]
        self.model_config = types.SimpleNamespace(vocab_size=32)
        self.metrics_processor = Metrics()
    def should_continue_training(self):
        return self.step < 1000
    def train_step(self, batches):
        total = 0
        for _ in range(2):
            inputs, labels = next(batches)
            logits = self.model_parts[0](inputs["input"]).flatten(0, 1)
            total += torch.nn.functional.cross_entropy(logits, labels.flatten()) / 2
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model_parts[0].parameters(), 1.0)
        self.model_parts[0].zero_grad()
        if self.metrics_processor.should_log(self.step):
            self.metrics_processor.log(self.step, total.item(), total.item(), norm.item())
    def batches(self):
        while True:
            draw = torch.randint(32, (2, 5))
            yield {"input": draw[:, :-1].clone()}, draw[:, 1:].clone()
    def train(self):
        batches = self.batches()
        while self.should_continue_training():
            self.step += 1
            self.train_step(batches)
"""
TRAIN = """
import sys
from torchtitan.trainer import Config, Trainer

def main():
    on = Config(enable=True, enable_profiling=True, enable_wandb=True, enable_tensorboard=True)
    config = Config(checkpoint=on, profiler=on, metrics=on)
    trainer = Trainer(config)
    trainer.train()
    print(sys.argv, on)
"""
SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
import hook_torchtitan as hook
dist.init_process_group("fake", rank=3, world_size=4)
mesh = init_device_mesh("cpu", (2, 2))
whole = torch.empty(12, 10)
parts = [[Shard(0), Shard(1)], [Shard(0), Shard(0)], [Shard(1), Shard(0)]]
hook._set_weight("layers.0.wq.weight", whole)
for places in parts:
    part = distribute_tensor(torch.zeros(12, 10), mesh, places, src_data_rank=None)
    hook._set_weight("_orig_mod.layers.0._checkpoint_wrapped_module.wq.weight", part)
    expected = distribute_tensor(whole, mesh, places, src_data_rank=None)
    assert torch.equal(part.to_local(), expected.to_local()), places
print(round(whole.std().item(), 3))
"""


@pytest.fixture
def job(tmp_path):
    """Runs a program with TorchTitan's hook at hand; returns what it printed."""
    package = tmp_path / "line/torchtitan"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "trainer.py").write_text(TRAINER, encoding="utf-8")
    (package / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "traces").mkdir()

    def run(*words):
        path = [str(IN_JOB), str(IN_JOB.parents[3])]
        environment = {
            "PATH": os.defpath,
            "RANK": "0",
            "GLOBAL_BATCH": "4",
            "WARMUP_STEPS": "2",
            "TIMED_STEPS": "3",
            "PROFILED_STEPS": "1",
            "TRACE_DIR": str(tmp_path / "traces"),
            "PYTHONPATH": ":".join(path),
            "CCLSEARCH_PYTHONPATH": str(tmp_path / "line"),
        }
        ended = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.mark.slow
def test_steps_are_timed_and_compared_on_equal_weights_and_tokens(job, tmp_path):
    line = (str(IN_JOB / "hook_torchtitan.py"), "-m", "torchtitan.train", "--module", "x")

    printed = [job(*line), job(*line)]

    report = json.loads((tmp_path / "traces/steps/rank0.json").read_text(encoding="utf-8"))
    assert printed[0] == printed[1]  # although it draws weights and tokens anew
    assert report["losses"][0] == pytest.approx(3.466, abs=0.01)  # of 32 equally likely tokens
    assert (len(report["losses"]), len(report["grad_norms"])) == (2, 2)
    assert (len(report["step_times_s"]), report["tokens"]) == (3, [16] * 6)
    assert (tmp_path / "traces/rank0.json").exists()
    outputs = f"--dump_folder={tmp_path}"
    assert f"['torchtitan.train', '{outputs}', '--module', 'x']" in printed[0]
    assert "enable=False, enable_profiling=False, enable_wandb=False" in printed[0]


@pytest.mark.slow
def test_a_shard_has_the_weights_of_its_place_in_the_whole(job):
    assert job("-c", SHARDED) == "0.02\n"
