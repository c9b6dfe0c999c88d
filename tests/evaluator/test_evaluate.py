import gzip
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from evaluator.evaluate import Site, TrialEvaluator
from evaluator.launchers.interleaved import VISIBLE_DEVICES, DeviceSlots
from evaluator.ports import JobResult
from evaluator.recipes.builtin import BuiltinRecipe
from evaluator.traces.readers.read import read_traces
from records.study import Study
from records.trial import Config, FailureKind, Measured, Outcome, Stage

CONFIG = Config({"dp_shard": 2, "micro_batch": 2})


STEPS, TRACE = "rank1.steps.json", "rank1_trace.json"


@dataclass
class Kept:
    """One real trial: what came of it, and the launch that it was read from."""

    study: Study
    outcome: Outcome
    result: JobResult
    phases: list[str]


class Recording:
    """Keeps the last result of a real launcher, or gives a changed copy of a finished launch."""

    def __init__(self, launcher=None, result=None, change=lambda _folder: None):
        self._launcher, self.result, self._change = launcher, result, change

    def run(self, job, workdir, on_phase):
        if self._launcher is not None:
            self.result = self._launcher.run(job, workdir, on_phase)
            return self.result
        shutil.copytree(self.result.workdir, workdir, dirs_exist_ok=True)
        self._change(workdir)
        return replace(self.result, workdir=workdir)


@pytest.fixture(scope="module")
def kept(launcher, study, tmp_path_factory):
    study = replace(study, measure=replace(study.measure, profiled_steps=2))
    recording, phases = Recording(launcher), []
    evaluator = TrialEvaluator(BuiltinRecipe(), recording, phases.append)
    outcome = evaluator.evaluate(study, CONFIG, tmp_path_factory.mktemp("trial"))
    return Kept(study, outcome, recording.result, phases)


@pytest.fixture
def evaluated(kept, tmp_path):
    """Evaluates the same launch again after a change to its folder or its result."""

    def evaluate(change=lambda _folder: None, result=kept.result, site=None, **measure):
        study = replace(kept.study, measure=replace(kept.study.measure, **measure))
        recorded, slots = (
            Recording(result=result, change=change),
            DeviceSlots(devices=("4", "GPU-a")),
        )
        evaluator = TrialEvaluator(BuiltinRecipe(), recorded, print, slots=slots, site=site)
        return evaluator.evaluate(study, CONFIG, tmp_path)

    return evaluate


def rewritten_steps(**changes):
    def change(folder):
        path = folder / STEPS
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def timed_last(*step):
    return rewritten_steps(timed=[[1, 2], [2, 3], [3, 4], [4, 5], [*step]])


def test_a_real_trial_is_measured(kept):
    measured = kept.outcome

    assert isinstance(measured, Measured)
    assert kept.phases == ["setup", "warmup", "timed", "profile", "done"]
    measurement = measured.measurement
    assert [len(steps) for steps in measurement.step_times_s] == [5, 5]
    assert [len(steps) for steps in measurement.warmup_times_s] == [1, 1]
    assert min(min(steps) for steps in measurement.step_times_s) > 0
    assert len(measurement.losses) == 6
    assert measurement.tokens_per_step == 8 * 32
    assert all(peak_bytes > 0 for peak_bytes in measurement.peak_memory_bytes)


def test_every_metric_that_a_cpu_can_answer_has_a_value(kept):
    values = {metric.name: metric.value for metric in kept.outcome.metrics}

    assert values["step_time"] > 0
    assert values["rank_count"] == 2
    assert 0 < values["communication_fraction"] < 1
    assert values["compute_fraction"] + values["exposed_communication_fraction"] < 1.000001
    assert kept.outcome.breakdown.compute_s > 0
    assert values["achieved_tflops"] > 0
    assert kept.outcome.absent["mfu"].startswith("the peak of 'cpu' is not known")


def test_the_launch_is_on_record_and_its_traces_hold_the_same_steps(kept):
    folder = kept.result.workdir
    traces = read_traces(sorted(folder.glob("rank*_trace.json")))
    record = json.loads((folder / "launch.json").read_text())

    assert [trace.rank for trace in traces.ranks] == [0, 1]
    assert traces.world_size == 2
    assert [trace.steps.number.tolist() for trace in traces.ranks] == [[6, 7]] * 2
    assert all(trace.backend == "gloo" for trace in traces.ranks)
    assert (record["world_size"], record["argv"][-1]) == (2, "job.json")


def test_a_trial_without_profiled_steps_is_measured_without_traces(kept, evaluated):
    def drop_traces(folder):
        for path in folder.glob("rank*_trace.json"):
            path.unlink()

    outcome = evaluated(drop_traces, profiled_steps=0)

    assert isinstance(outcome, Measured)
    assert outcome.breakdown is None
    assert outcome.metric("step_time") == kept.outcome.metric("step_time")
    assert outcome.metric("communication_fraction") is None


def left(name, content):
    """Puts these bytes in the place of a file."""
    return lambda folder: (folder / name).write_bytes(content)


def replaced(name, make):
    """Makes something else of a file that was there."""

    def change(folder):
        (folder / name).unlink()
        make(folder / name)

    return change


def copied(name, source):
    return lambda folder: shutil.copy(folder / source, folder / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced(STEPS, str), "rank 1 ended without leaving rank1.steps.json"),
        (left(STEPS, b'{"rank": 1, "warm'), "rank1.steps.json: Input data was truncated"),
        (left(STEPS, bytes(range(256))), "rank1.steps.json: "),
        (
            left(STEPS, b" " * ((16 << 20) + 1)),
            "rank1.steps.json: holds more than 16777216 bytes on disk",
        ),
        (
            left(STEPS, gzip.compress(b" " * (32 << 20))),
            "rank1.steps.json: holds more than 16777216 bytes decompressed",
        ),
        (replaced(STEPS, Path.mkdir), "rank1.steps.json: is no regular file"),
        (
            replaced(STEPS, lambda path: path.symlink_to("/dev/zero")),
            "rank1.steps.json: is no regular file",
        ),
        (copied(STEPS, "rank0.steps.json"), "rank1.steps.json says that it is of rank 0"),
        (rewritten_steps(timed=[[1, 2]]), "rank 1 timed 1 steps, 5 were asked for"),
        (timed_last(6, 6), "rank 1 has a step that ends before it starts"),
        (timed_last(5, 6, 7), "steps differ in their parts, or have parts that do not pair"),
        (timed_last(5), "rank1.steps.json: Expected `array` of length >= 2"),
        (rewritten_steps(losses=["much"]), "rank1.steps.json: Expected `float`, got `str`"),
        (replaced(TRACE, str), "rank1_trace.json: is no regular file"),
        (
            lambda folder: (folder / TRACE).write_bytes((folder / TRACE).read_bytes()[:-1000]),
            "rank1_trace.json: is not a Chrome trace: it is truncated",
        ),
        (left(TRACE, b"not a trace"), "rank1_trace.json: "),
        (left(TRACE, b'{"traceEvents": []}'), "rank1_trace.json: holds no event"),
        (copied(TRACE, "rank0_trace.json"), "rank1_trace.json: holds rank 0, and so does "),
    ],
)
def test_what_a_rank_left_is_not_believed_unless_it_is_whole(change, message, evaluated):
    failed = evaluated(change)

    assert failed.kind is FailureKind.METRIC_ERROR
    assert failed.stage in (Stage.MEASURE, Stage.READ)
    assert failed.message.startswith(message)


def test_ranks_that_did_other_work_are_not_measured(evaluated):
    failed = evaluated(rewritten_steps(tokens_per_step=64))

    assert (failed.kind, failed.stage) == (FailureKind.INVALID_CONFIG, Stage.MEASURE)
    assert failed.message.startswith("processed 192 tokens per step, the study asks for 256")


def test_a_job_that_crashed_is_not_measured_but_recorded_with_where_and_how_it_ended(
    kept, evaluated
):
    ranks = tuple(replace(rank, status=3) for rank in kept.result.ranks)
    crashed = replace(kept.result, reason="rank_failed", ranks=ranks, wall_s=2.0)
    site = Site(job_id="slurm 7", machine=lambda: "digest")

    failed = evaluated(left("rank0.log", b"ValueError: no\n"), result=crashed, site=site)

    assert (failed.kind, failed.stage) == (FailureKind.CRASH, Stage.LAUNCH)
    launched = failed.launched
    assert launched.argv[-1] == "job.json"
    assert launched.environment == {**crashed.environment, VISIBLE_DEVICES: "4,GPU-a"}
    assert (launched.files, launched.folders) == (("job.json",), {})
    assert (launched.job_id, launched.machine) == ("slurm 7", "digest")
    assert launched.devices == ("4", "GPU-a")
    assert (launched.reason, launched.wall_s, len(launched.hosts)) == ("rank_failed", 2.0, 1)
    assert [(end.status, end.first_error) for end in launched.ranks] == [
        (3, "ValueError: no"),
        (3, None),
    ]
