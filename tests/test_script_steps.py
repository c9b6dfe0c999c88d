"""`cclsearch.steps()` in a script: what it does in a trial, and that it does nothing outside."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

Run = Callable[..., tuple[str, list[dict[str, Any]]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script with this one file on its path; returns its output and what ranks wrote."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "cclsearch.py").write_bytes((ROOT / "cclsearch.py").read_bytes())
    traces = tmp_path / "traces"
    traces.mkdir()

    def call(script: str, *, steps: tuple[int, int, int] | None = (1, 3, 0), **variables: str):
        environment = {"PYTHONPATH": str(library), **variables}
        if steps is not None:
            names = ("WARMUP_STEPS", "TIMED_STEPS", "PROFILED_STEPS")
            environment |= {"TRACE_DIR": str(traces)} | dict(
                zip(names, map(str, steps), strict=True)
            )
        ended = subprocess.run(
            [sys.executable, "-S", "-c", "import cclsearch\n" + script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        written = [json.loads(path.read_text()) for path in sorted(traces.glob("steps/*.json"))]
        return ended.stdout, written

    return call


def test_outside_a_trial_the_loop_is_over_the_items_themselves(run: Run) -> None:
    script = (
        "print([x for x in cclsearch.steps('abc')], cclsearch.in_trial())\ncclsearch.log(loss=1)"
    )
    assert run(script, steps=None) == ("['a', 'b', 'c'] False\n", [])


def test_outside_a_trial_steps_are_counted_without_end(run: Run) -> None:
    script = "import itertools\nprint(list(itertools.islice(cclsearch.steps(), 4)))"
    assert run(script, steps=None)[0] == "[0, 1, 2, 3]\n"


def test_a_trial_warms_up_times_and_ends_the_loop(run: Run) -> None:
    output, (rank,) = run("print([x for x in cclsearch.steps(range(9))])", steps=(2, 3, 0))
    assert output == "[0, 1, 2, 3, 4]\n"
    assert (len(rank["warmup_times_s"]), len(rank["step_times_s"])) == (2, 3)
    assert rank["fault"] is None


def test_a_trial_shows_which_step_it_has_begun(run: Run, tmp_path: Path) -> None:
    run("for _ in cclsearch.steps(): pass", steps=(1, 2, 0), RANK="3")

    lines = (tmp_path / "rank3.progress.jsonl").read_text().splitlines()
    begun = [(beat["phase"], beat["step"]) for beat in map(json.loads, lines)]
    assert begun == [("warmup", 0), ("timed", 1), ("timed", 2), ("done", None)]


def test_items_start_over_where_they_are_too_few(run: Run) -> None:
    assert run("print(*cclsearch.steps('ab'))", steps=(2, 3, 0))[0] == "a b a b a\n"


def test_a_step_lasts_from_the_fetch_of_its_item_to_that_of_the_next(run: Run) -> None:
    script = """
import time
def items():
    for n in range(9):
        time.sleep(0.02)
        yield n
for _ in cclsearch.steps(items()):
    time.sleep(0.03)
"""
    _, (rank,) = run(script)
    assert all(step_s >= 0.05 for step_s in rank["step_times_s"])


def test_what_is_logged_is_reported_by_step(run: Run) -> None:
    script = """
for n in cclsearch.steps():
    cclsearch.log(loss=n / 2, tokens=7)
    cclsearch.log(tokens=1, grad_norm=n + 1)
"""
    _, (rank,) = run(script, steps=(1, 2, 0))
    assert (rank["losses"], rank["tokens"]) == ([0.0, 0.5, 1.0], [8, 8, 8])
    assert rank["grad_norms"] == [1.0, 2.0, 3.0]


def test_a_step_may_accumulate_several_items(run: Run) -> None:
    script = """
for n in cclsearch.steps(range(4), accumulate=2):
    cclsearch.log(loss=n, tokens=5)
    print(n, end=" ")
"""
    output, (rank,) = run(script, steps=(1, 2, 0))
    assert output == "0 1 2 3 0 1 "
    assert (rank["losses"], rank["tokens"]) == ([0.5, 2.5, 0.5], [10, 10, 10])


TENSOR = """
import sys, types
class Tensor(list):
    ndim = 2
    def numel(self):
        return sum(map(len, self))
    def is_floating_point(self):
        return isinstance(self[0][0], float)
"""


def test_the_callback_of_transformers_counts_tokens_and_ends_the_training(run: Run) -> None:
    script = f"""{TENSOR}
sys.modules["transformers"] = types.SimpleNamespace(TrainerCallback=object)
class Loader:
    def __iter__(self):
        yield from [{{"input_ids": Tensor([[1, 2, 3]] * 2)}}] * 9
loader, control = Loader(), types.SimpleNamespace(should_training_stop=False)
callback = cclsearch.trainer_callback()
callback.on_train_begin(None, None, control, train_dataloader=loader, model=None)
list(Loader())  # an evaluation of other data
batches, steps = iter(loader), 0
while not control.should_training_stop:
    next(batches), next(batches)  # two batches are accumulated
    callback.on_step_end(None, None, control, model=None)
"""
    _, (rank,) = run(script)
    assert (rank["tokens"], rank["fault"]) == ([12] * 4, None)


def test_a_trainer_of_transformers_that_trains_a_model_on_each_rank_is_refused(run: Run) -> None:
    script = """
import sys, types
sys.modules["transformers"] = types.SimpleNamespace(TrainerCallback=object)
alone = types.SimpleNamespace(parallel_mode=types.SimpleNamespace(value="not_parallel"))
try:
    cclsearch.trainer_callback().on_train_begin(alone, None, None, train_dataloader=[])
except RuntimeError as error:
    assert "trains 4 separate models" in str(error) and "--use_cpu" in str(error)
else:
    raise AssertionError
for batch in cclsearch.steps():
    pass
"""
    _, (rank,) = run(script, WORLD_SIZE="4")
    assert rank["fault"] is None


@pytest.mark.parametrize("library", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_of_lightning_counts_samples_and_optimizer_steps(
    run: Run, library: str
) -> None:
    script = f"""{TENSOR}
sys.modules["{library}"] = types.SimpleNamespace(Callback=object)
trainer = types.SimpleNamespace(global_step=0, should_stop=False)
callback = cclsearch.lightning_callback()
callback.on_train_start(trainer, None)
batch = (Tensor([[0.5, 0.5]] * 8), Tensor([[1]] * 8))
for index in range(99):
    trainer.global_step = (index + 1) // 2  # two batches are accumulated
    callback.on_train_batch_end(trainer, None, None, batch, index)
    if trainer.should_stop:
        break
"""
    _, (rank,) = run(script, LOCAL_RANK="1")
    assert (rank["rank"], rank["tokens"], rank["fault"]) == (1, [16] * 4, None)


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
def test_each_rank_writes_its_own_file(run: Run, variable: str) -> None:
    for rank in "03":
        _, written = run("for _ in cclsearch.steps(): pass", **{variable: rank})
    assert [rank["rank"] for rank in written] == [0, 3]


def test_a_loop_that_is_left_early_says_after_how_many_steps(run: Run) -> None:
    script = "for n in cclsearch.steps():\n if n == 2: break"
    _, (rank,) = run(script, steps=(1, 5, 0))
    assert rank["fault"] == "the loop over cclsearch.steps() ended after 2 of 6 steps"


def test_items_that_cannot_start_over_end_with_the_number_of_steps(run: Run) -> None:
    _, (rank,) = run("for _ in cclsearch.steps(iter('ab')): pass", steps=(1, 5, 0))
    assert rank["fault"] == "the loop over cclsearch.steps() ended after 2 of 6 steps"


def test_a_second_loop_after_the_measurement_has_no_steps(run: Run) -> None:
    script = "for epoch in range(3): print(len(list(cclsearch.steps('ab'))))"
    assert run(script)[0] == "4\n0\n0\n"


def test_a_script_without_torch_is_told_to_leave_out_profiled_steps(run: Run) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run("for _ in cclsearch.steps(): pass", steps=(1, 2, 1))
    assert "set [measure] profiled_steps = 0" in caught.value.stderr
