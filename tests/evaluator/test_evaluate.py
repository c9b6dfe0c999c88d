"""One real trial, measured and diagnosed; nothing of it is believed unless it is whole."""

import gzip
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from evaluator.evaluate import COLLECTIVES_KEPT, Site, TrialEvaluator, diagnose
from evaluator.launchers.interleaved import VISIBLE_DEVICES, DeviceSlots
from evaluator.metrics.base import Evidence
from evaluator.ports import JobResult
from evaluator.recipes.builtin import BuiltinRecipe
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.readers.read import read_traces
from evaluator.traces.testing import Span, rank_trace
from records.codec import from_json, to_json
from records.study import Study
from records.trial import Config, Diagnosis, FailureKind, Measured, Outcome, Stage
from tests.support.records import ENVIRONMENT

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
        (replaced(STEPS, Path.mkdir), "rank1.steps.json: is not a regular file"),
        (
            replaced(STEPS, lambda path: path.symlink_to("/dev/zero")),
            "rank1.steps.json: is not a regular file",
        ),
        (copied(STEPS, "rank0.steps.json"), "rank1.steps.json says that it is of rank 0"),
        (rewritten_steps(timed=[[1, 2]]), "rank 1 timed 1 steps, 5 were asked for"),
        (timed_last(6, 6), "rank 1 has a step that ends before it starts"),
        (timed_last(5, 6, 7), "steps differ in their parts, or have parts that do not pair"),
        (timed_last(5), "rank1.steps.json: Expected `array` of length >= 2"),
        (rewritten_steps(losses=["much"]), "rank1.steps.json: Expected `float`, got `str`"),
        (replaced(TRACE, str), "rank1_trace.json: is not a regular file"),
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


SYNTHETIC = Path(__file__).parents[1] / "data" / "traces" / "synth_fsdp_4rank_straggler2"
REDUCE, GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER


def call(start, end, ranks=(0, 1), kind=REDUCE, size=8):
    group = RankGroup(",".join(map(str, ranks)), tuple(ranks), len(ranks))
    return Span(
        Activity.COMMUNICATION, start, end, collective=kind, group=group, payload_bytes=size
    )


def compute(start, end):
    return Span(Activity.COMPUTE, start, end, lane=1)


def diagnosed(*spans_of_rank, steps=((0, 0, 100),), **changed):
    traces = TraceSet(
        ranks=tuple(
            rank_trace(spans, steps=steps, rank=rank) for rank, spans in enumerate(spans_of_rank)
        )
    )
    return diagnose(Evidence(traces=traces, **changed))


def ns(seconds):
    return round(seconds * 1e9)


def test_a_launch_without_traces_or_marked_steps_has_no_diagnosis():
    assert diagnose(Evidence()) is None
    assert diagnosed([compute(0, 10)], steps=()) is None


def test_each_collective_is_exposed_where_nothing_computes_and_hidden_beside_compute():
    found = diagnosed(
        [compute(0, 50), call(40, 70), call(80, 100, kind=GATHER, size=1024)],
        [compute(0, 60), call(40, 70), call(80, 100, kind=GATHER, size=1024)],
    )

    gather, reduce = found.collectives
    assert (gather.kind, ns(gather.exposed_s), ns(gather.hidden_s)) == ("all_gather", 20, 0)
    assert (reduce.kind, ns(reduce.exposed_s), ns(reduce.hidden_s)) == ("all_reduce", 15, 15)
    assert (gather.call_count, gather.bytes, gather.ranks) == (1.0, 1024.0, (0, 1))
    assert ns(found.exposed_communication_s) == 35
    assert ns(found.step_s) == 100


def test_groups_of_one_shape_are_one_line_and_others_are_not():
    neighbours = [[call(0, 10, ranks)] for ranks in ((0, 1), (0, 1), (2, 3), (2, 3))]
    across = [call(20, 60, ranks) for ranks in ((0, 2), (1, 3), (0, 2), (1, 3))]
    found = diagnosed(*([*near, far] for near, far in zip(neighbours, across, strict=True)))

    assert [(c.ranks, c.group_count, ns(c.exposed_s)) for c in found.collectives] == [
        ((0, 2), 2, 40),
        ((0, 1), 2, 10),
    ]


def test_groups_cross_nodes_by_the_ranks_of_a_node():
    def crossing(environment):
        (found,) = diagnosed(
            *([call(0, 10, (0, 1, 2))] for _ in range(3)), environment=environment
        ).collectives
        return found.crosses_nodes

    assert crossing(None) is None
    assert crossing(ENVIRONMENT) is True
    assert crossing(replace(ENVIRONMENT, ranks_per_node=4)) is False


def test_what_a_collective_does_not_list_is_told_without_it():
    unlisted = replace(call(0, 10, size=0), group=RankGroup("tp", None, 4))
    (found,) = diagnosed([unlisted, unlisted], environment=ENVIRONMENT).collectives

    assert (found.group_size, found.ranks, found.crosses_nodes) == (4, None, None)
    assert (found.call_count, found.bytes) == (2.0, None)


def test_steps_are_averaged_and_what_is_between_them_is_left_out():
    spans = [compute(0, 20), call(20, 40), call(140, 160), compute(200, 260), call(260, 300)]
    found = diagnosed(spans, spans, steps=((0, 0, 100), (1, 200, 300)))

    (reduce,) = found.collectives
    assert ns(reduce.exposed_s) == 30
    assert ns(found.compute_s) == 40


def test_waiting_for_a_neighbour_is_the_pipeline_bubble():
    found = diagnosed(
        [compute(0, 50), call(50, 60, kind=CollectiveKind.SEND)],
        [call(0, 60, kind=CollectiveKind.RECV), compute(60, 100)],
    )

    assert ns(found.pipeline_bubble_s) == 35
    assert diagnosed([call(0, 60)], [call(0, 60)]).pipeline_bubble_s is None


def test_the_slowest_rank_and_the_one_that_is_waited_for_are_told():
    found = diagnosed([compute(0, 40), call(40, 100)], [compute(0, 80), call(80, 100)])

    assert (found.slowest_rank, found.straggler) == (1, 1)
    assert found.slowest_over_mean == pytest.approx(80 / 60)
    assert found.straggler_share == pytest.approx(0.4)


def test_the_memory_is_that_of_the_rank_that_needed_most():
    rich = replace(ENVIRONMENT, device="cuda", memory_bytes=100)
    found = diagnosed([compute(0, 10)], peak_memory_bytes=(30, 70), environment=rich)

    assert (found.peak_memory_bytes, found.memory_bytes) == (70, 100)
    assert diagnosed([compute(0, 10)], peak_memory_bytes=(0,)).peak_memory_bytes is None


def test_resident_pages_of_a_host_are_not_held_against_its_limit_on_mapped_ones():
    rich = replace(ENVIRONMENT, device="cpu", memory_bytes=100)
    found = diagnosed([compute(0, 10)], peak_memory_bytes=(110,), environment=rich)

    assert (found.peak_memory_bytes, found.memory_bytes) == (110, None)


def test_only_the_largest_collectives_are_kept():
    spans = [call(10 * n, 10 * n + n, (0, n + 1), size=n) for n in range(1, 9)]
    found = diagnosed(spans)

    assert len(found.collectives) == COLLECTIVES_KEPT
    assert [ns(c.exposed_s) for c in found.collectives] == [8, 7, 6, 5, 4, 3]


def test_recorded_traces_name_the_known_straggler():
    traces = read_traces(sorted(SYNTHETIC.glob("rank*_trace.json.gz")))
    found = diagnose(Evidence(traces=traces))

    assert (found.slowest_rank, found.straggler) == (2, 2)
    assert found.slowest_over_mean > 1.1
    assert {c.kind for c in found.collectives} == {"all_gather", "reduce_scatter"}


@pytest.mark.parametrize(
    "pattern",
    [
        "kineto/gloo_ddp_2rank/rank*_trace.json.gz",
        "kineto/mi300_ddp8_rank0.json.gz",
        "kineto/b200_8rank_rank0_eager.json.gz",
        "xla/jax_cpu_4dev.trace.json.gz",
        "xla/vllm_tpu_2chip_a.trace.json.gz",
    ],
)
def test_recorded_traces_add_up(recorded_data, pattern):
    traces = read_traces(sorted((recorded_data / "traces").glob(pattern)))
    found = diagnose(Evidence(traces=traces))

    split = job_split(traces)
    assert found.step_s == pytest.approx(split.mean.window_s)
    assert found.collectives
    total_s = split.mean.communication_s
    assert all(0 <= c.exposed_s <= c.total_s <= total_s * (1 + 1e-9) for c in found.collectives)
    exposed_s = sum(c.exposed_s for c in found.collectives)
    assert exposed_s == pytest.approx(found.exposed_communication_s, rel=0.02)
    assert from_json(Diagnosis, to_json(found)) == found
