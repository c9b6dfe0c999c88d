"""Hooks of transformers, accelerate and DeepSpeed, in a process with small packages of these names.

The packages have the classes that the hooks change, and train nothing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

IN_JOB = Path(__file__).parents[4] / "evaluator/recipes/frameworks/in_job"
LIBRARY = Path(__file__).parents[4] / "cclsearch.py"

TENSOR = """
class Tensor(float):
    ndim, shape = 0, ()
    def detach(self):
        return self

class Batch(list):
    ndim = 2
    def numel(self):
        return sum(map(len, self))
    def is_floating_point(self):
        return False
"""
ACCELERATE = """
from types import SimpleNamespace
from accelerate.data_loader import DataLoaderShard

class Accelerator:
    def __init__(self, kind="MULTI_CPU", accumulate=1):
        self.state = SimpleNamespace(distributed_type=SimpleNamespace(value=kind))
        self.state.deepspeed_plugin = SimpleNamespace(zero_stage=2)
        self.sync_gradients = True
    def backward(self, loss):
        pass
    def clip_grad_norm_(self, parameters, most):
        return 0.5
"""
LOADERS = """
class DataLoaderShard(list):
    def __iter__(self):
        return super().__iter__()

class DataLoaderDispatcher(DataLoaderShard):
    pass
"""
OPTIMIZER = """
from types import SimpleNamespace

class AcceleratedOptimizer:
    gradient_state = SimpleNamespace(sync_gradients=True)
    def step(self):
        pass
"""
TRANSFORMERS = """
from accelerate import Accelerator
from tensors import Tensor

class TrainerCallback:
    pass

class Trainer:
    def __init__(self, batches):
        self.batches, self.callbacks, self.accelerator = batches, [], Accelerator("NO")
    def add_callback(self, callback):
        self.callbacks.append(callback)
    def training_step(self, model, inputs):
        return Tensor(1.5)
    def train(self):
        for callback in self.callbacks:
            callback.on_train_begin(None, None, None)
        while True:
            for batch in self.batches:
                self.training_step(None, batch)
                self.training_step(None, batch)
                for callback in self.callbacks:
                    callback.on_step_end(None, None, None)
"""
ENGINE = """
class DeepSpeedEngine:
    training = True
    def __init__(self):
        self.micro_steps = 0
    def zero_optimization_stage(self):
        return 3
    def gradient_accumulation_steps(self):
        return 2
    def is_gradient_accumulation_boundary(self):
        return self.micro_steps % 2 == 1
    def forward(self, batch):
        return batch
    def backward(self, loss, scale_wrt_gas=True):
        pass
    def step(self):
        self.micro_steps += 1
    def get_global_grad_norm(self):
        return 0.25
"""
PACKAGES = {
    "tensors.py": TENSOR,
    "accelerate/__init__.py": ACCELERATE,
    "accelerate/data_loader.py": LOADERS,
    "accelerate/optimizer.py": OPTIMIZER,
    "transformers.py": TRANSFORMERS,
    "deepspeed/__init__.py": "",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/engine.py": ENGINE,
}
BATCH = "{'input_ids': Batch([[1, 2, 3], [4, 5, 6]])}"


@pytest.fixture
def run(tmp_path):
    """Runs a script under a hook: what it printed, and what the rank reports of three steps."""
    for name, text in PACKAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for path in (LIBRARY, *IN_JOB.glob("hook*.py")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "traces").mkdir()

    def call(hook: str, script: str, *, length: int = 3):
        (tmp_path / "train.py").write_text(
            f"from tensors import Batch, Tensor\n{script}", encoding="utf-8"
        )
        steps = {"WARMUP_STEPS": "1", "TIMED_STEPS": "2", "PROFILED_STEPS": "0"}
        ended = subprocess.run(
            [sys.executable, "-S", f"hook_{hook}.py", "train.py"],
            env={"TRACE_DIR": "traces", "SEQUENCE_LENGTH": str(length), "PATH": os.defpath} | steps,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout, json.loads((tmp_path / "traces/steps/rank0.json").read_text())

    return call


TRAIN = f"import transformers\ntransformers.Trainer([{BATCH}]).train()\nprint('never')"


@pytest.mark.parametrize(("length", "tokens"), [(3, 12), (1, 4)])
def test_a_trainer_reports_its_steps_and_the_loss_of_all_micro_batches(run, length, tokens):
    printed, rank = run("transformers", TRAIN, length=length)

    assert printed == "cclsearch: accelerate trains with no other rank\n"
    assert (len(rank["warmup_times_s"]), len(rank["step_times_s"])) == (1, 2)
    assert (rank["losses"], rank["tokens"]) == ([3.0] * 3, [tokens] * 3)


def test_a_loop_with_accelerate_is_timed_where_gradients_are_synchronized(run):
    printed, rank = run(
        "transformers",
        f"""
from accelerate import Accelerator, DataLoaderShard
from accelerate.optimizer import AcceleratedOptimizer
accelerator, optimizer = Accelerator("DEEPSPEED"), AcceleratedOptimizer()
for number, batch in enumerate(DataLoaderShard([{BATCH}] * 99), 1):
    is_last = number % 3 == 0
    optimizer.gradient_state.sync_gradients = accelerator.sync_gradients = is_last
    accelerator.backward(Tensor(number))
    accelerator.clip_grad_norm_([], 1.0)
    optimizer.step()
""",
    )

    assert printed == "cclsearch: accelerate trains with zero2\n"
    assert (rank["losses"], rank["tokens"]) == ([2.0, 5.0, 8.0], [18] * 3)
    assert rank["grad_norms"] == [0.5] * 3


def test_an_engine_is_timed_at_the_boundary_of_accumulation(run):
    printed, rank = run(
        "deepspeed",
        """
from deepspeed.runtime.engine import DeepSpeedEngine
engine = DeepSpeedEngine()
while True:
    engine.forward(Batch([[1, 2, 3]]))
    engine.backward(Tensor(2), scale_wrt_gas=False)
    engine.step()
""",
    )

    assert printed == "cclsearch: DeepSpeed trains with ZeRO stage 3\n"
    assert (rank["losses"], rank["tokens"]) == ([4.0] * 3, [6] * 3)
    assert rank["grad_norms"] == [0.25] * 3
