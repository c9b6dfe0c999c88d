"""Scripts that are launched for real, for studies with two knobs."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.recipes.command import CommandRecipe, locate
from records.study import (
    Command,
    Dimension,
    Environment,
    Launch,
    Measure,
    Objective,
    SearchSpace,
    Study,
)
from records.trial import Config, Failed, Measured, Measurement, Outcome
from records.workload import Workload

RECIPE = CommandRecipe()
TWO_RANKS = Config({"dp": 2, "fast": True})
OURS = {
    "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
    "HOME": "/nowhere",
    "LANG": "C.UTF-8",
    "VIRTUAL_ENV": "/venv",
    "EDITOR": "vi",
    "DP": "64",
    "SLURM_JOB_ID": "7",
    "LD_LIBRARY_PATH": "/opt/lib",
}

# Steps of 20 and 30 ms, on the clock of the world.
PRELUDE = r"""
set -eu
trace() {  # rank, file name, world size, earlier by so many seconds
  local us=$(($(date +%s%N) / 1000 - ${4:-0} * 1000000))
  local place="\"ph\": \"X\", \"pid\": 1, \"tid\": 1"
  cat > "$TRACE_DIR/${2:-rank$1.json}" <<JSON
{"distributedInfo": {"backend": "gloo", "rank": $1, "world_size": ${3:-2}}, "traceEvents": [
 {$place, "cat": "user_annotation", "name": "ProfilerStep#3", "ts": $us, "dur": 20000},
 {$place, "cat": "user_annotation", "name": "ProfilerStep#4", "ts": $((us + 20000)), "dur": 30000},
 {$place, "cat": "cpu_op", "name": "aten::mm", "ts": $us, "dur": 10000},
 {$place, "cat": "user_annotation", "name": "gloo:all_reduce", "ts": $((us + 10000)), "dur": 5000}
]}
JSON
}
traces() { trace 0; trace 1; }
steps() { echo "$1" > "$TRACE_DIR/steps.json"; }
"""


def study(**command: object) -> Study:
    return Study(
        name="script",
        workload=Workload(name="a workload", global_batch=8, sequence_length=32),
        environment=Environment(
            name="test", device="cpu", accelerator="cpu", world_size=4, ranks_per_node=4
        ),
        space=SearchSpace(
            dimensions=(
                Dimension(name="dp", choices=(1, 2, 4)),
                Dimension(name="fast", choices=(True, False)),
            )
        ),
        objective=Objective(expression="step_time"),
        seed_policy="first",
        measure=Measure(timeout_s=30),
        launch=Launch(recipe="command"),
        command=Command(run=("bash", "run.sh"), **command),
    )


@pytest.fixture(scope="session")
def script_study() -> Callable[..., Study]:
    """Makes studies of a script beside them, from keys of their command."""
    return study


@pytest.fixture(scope="session")
def ours() -> dict[str, str]:
    """What our environment holds, in these tests."""
    return OURS


@dataclass(frozen=True, slots=True)
class Tried:
    """How a script's trial ended, and the folder that it left."""

    outcome: Outcome
    folder: Path

    @property
    def measurement(self) -> Measurement:
        assert isinstance(self.outcome, Measured), self.outcome
        return self.outcome.measurement

    @property
    def failure(self) -> Failed:
        assert isinstance(self.outcome, Failed), self.outcome
        return self.outcome

    @property
    def environment(self) -> dict[str, str]:
        """What the script saw, if it wrote that to a file."""
        lines = (self.folder / "environment").read_text().split("\0")
        return dict(line.split("=", 1) for line in lines if line)


@pytest.fixture(scope="module")
def script_launcher() -> Iterator[LocalLauncher]:
    launcher = LocalLauncher(RECIPE.inherited(study(), OURS), threads_per_rank=1)
    yield launcher
    launcher.close()


@pytest.fixture
def tried(script_launcher: LocalLauncher, tmp_path: Path) -> Callable[..., Tried]:
    """Launches a script for a configuration of a study, in a folder of its own."""

    def run(
        script: str,
        *,
        asked: Study | None = None,
        config: Config = TWO_RANKS,
        measure: Measure | None = None,
    ) -> Tried:
        asked = asked or study()
        if measure is not None:
            asked = replace(asked, measure=measure)
        (tmp_path / "run.sh").write_text(PRELUDE + script, encoding="utf-8")
        asked = RECIPE.complete(replace(asked, command=locate(asked.command, tmp_path)))
        RECIPE.check(asked)
        folder = tmp_path / f"trial{len(list(tmp_path.glob('trial*')))}"
        folder.mkdir()
        evaluator = TrialEvaluator(RECIPE, script_launcher, lambda _: None)
        return Tried(evaluator.evaluate(asked, config, folder), folder)

    return run
