"""Launches that share a machine: in turns, or in threads on slots of their own."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.interleaved import VISIBLE_DEVICES, DeviceSlots, device_slots
from evaluator.launchers.local import LocalLauncher
from evaluator.ports import Job, JobResult
from evaluator.recipes.builtin import BuiltinRecipe
from records.errors import EnvironmentFault
from records.study import Study
from records.trial import Config, Failed, FailureKind, Measured, Stage
from tests.evaluator.conftest import OtherEntry
from tests.support import records as testing

TURNS = 20
PLAIN, SHARDED = Config({"dp_replicate": 2}), Config({"dp_shard": 2})


def misbehaving(config, **misdeed):
    return OtherEntry("bad_entries:misbehave", only=config, **{"rank": 1, "step": 8, **misdeed})


@pytest.fixture(scope="module")
def neighbour(launch_environment):
    """A launcher beside the first, kept over all tests of this file."""
    launcher = LocalLauncher(launch_environment, threads_per_rank=1)
    yield launcher
    launcher.close()


@pytest.fixture
def together(study, launcher, neighbour, tmp_path):
    """Evaluates configurations together, each in a folder that is called by its place."""

    def evaluate(*configs, recipe=None, seed=0, on_phase=lambda _: None, **measure):
        asked = {"profiled_steps": 1, "max_timed_steps": TURNS} | measure
        evaluator = TrialEvaluator(recipe or BuiltinRecipe(), launcher, on_phase, lambda: neighbour)
        folders = [tmp_path / str(place) for place in range(len(configs))]
        for folder in folders:
            folder.mkdir()
        changed = replace(study, measure=replace(study.measure, **asked))
        return evaluator.evaluate_together(changed, configs, folders, seed)

    return evaluate


def steps_of(folder: Path) -> list[tuple[int, int]]:
    """Beginning and end of all steps of all ranks, in ns, by their beats."""
    spans = []
    for path in sorted(folder.glob("rank*.progress.jsonl")):
        beats = [json.loads(line) for line in path.read_text().splitlines()]
        spans += [
            (beat["at_ns"], after["at_ns"])
            for beat, after in pairwise(beats)
            if beat["step"] is not None
        ]
    return spans


def ranks_in(folder: Path, pids: list[int]) -> list[int]:
    """Processes that work in a folder."""
    return [pid for pid in pids if Path(f"/proc/{pid}/cwd").resolve() == folder]


def turns_of(folders: list[Path]) -> list[int]:
    """Whose turn it was, in order: the numbers of the folders."""
    spans = sorted(
        (span, place) for place, folder in enumerate(folders) for span in steps_of(folder)
    )
    places = [place for _, place in spans]
    return [
        place for place, before in zip(places, [None, *places], strict=False) if place != before
    ]


def overlap(one: Path, other: Path) -> bool:
    return any(
        start < other_end and other_start < end
        for start, end in steps_of(one)
        for other_start, other_end in steps_of(other)
    )


def test_two_configurations_take_turns_and_never_step_at_once(together, tmp_path):
    phases = []

    outcomes = together(PLAIN, SHARDED, on_phase=phases.append)

    assert phases == ["setup", "warmup", "timed", "done"]
    for outcome in outcomes:
        assert isinstance(outcome, Measured), outcome
        assert outcome.measurement.turn_steps == (1,) * TURNS
        assert [len(times) for times in outcome.measurement.step_times_s] == [TURNS] * 2
        assert len(outcome.measurement.losses) == 1 + TURNS
        assert outcome.measurement.stopped is None
        assert outcome.metric("step_time") > 0
        assert outcome.breakdown is None
    assert not overlap(tmp_path / "0", tmp_path / "1")
    # Warm-up of both, then back and forth: two turns that follow each other are one here.
    assert turns_of([tmp_path / "0", tmp_path / "1"]) == [0, 1] * (1 + TURNS // 2)


def test_what_they_compute_and_record_is_as_in_a_launch_alone(together, study, launcher, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    asked = replace(study, measure=replace(study.measure, profiled_steps=0))

    measured = TrialEvaluator(BuiltinRecipe(), launcher, print).evaluate(asked, PLAIN, alone)
    outcomes = together(PLAIN, PLAIN)

    losses = measured.measurement.losses
    assert [outcome.measurement.losses[: len(losses)] for outcome in outcomes] == [losses] * 2
    record = json.loads((tmp_path / "0" / "launch.json").read_text())
    assert "CCLSEARCH_TURNS" not in record["environment"]
    assert record["timeout_s"] == 60


@pytest.mark.parametrize("step", [None, 8], ids=["set-up", "turn"])
def test_a_crash_is_told_as_that_configuration_s_own(together, step):
    crashing = misbehaving(SHARDED, what="fail", step=step)

    innocent, crashed = together(PLAIN, SHARDED, recipe=crashing)

    assert isinstance(crashed, Failed)
    assert (crashed.stage, crashed.kind) == (Stage.LAUNCH, FailureKind.CRASH)
    assert "wrong shape" in crashed.message
    assert isinstance(innocent, Failed)
    assert innocent.kind is FailureKind.INFRASTRUCTURE
    assert innocent.message.startswith("ended because its partner failed (crash: ")


def test_a_hang_ends_the_turns_of_all(together):
    hanging = misbehaving(PLAIN, what="sleep")

    hung, innocent = together(PLAIN, SHARDED, recipe=hanging, hang_after_s=2)

    assert hung.kind is FailureKind.HANG
    assert innocent.kind is FailureKind.INFRASTRUCTURE


def test_a_job_that_is_killed_at_its_gates_does_not_keep_the_other_waiting(
    together, processes, tmp_path
):
    """All ranks are at their gates when the warm-up begins."""

    def kill_second(phase):
        if phase == "warmup":
            for pid in ranks_in(tmp_path / "1", processes()):
                os.kill(pid, signal.SIGKILL)

    innocent, killed = together(PLAIN, SHARDED, on_phase=kill_second)

    assert isinstance(killed, Failed)
    assert killed.stage is Stage.LAUNCH
    assert innocent.kind is FailureKind.INFRASTRUCTURE
    assert innocent.message.startswith(f"ended because its partner failed ({killed}")


def test_waiting_at_a_gate_is_no_hang(together):
    """The other one's warm-up takes longer than a rank may be silent in a step."""
    slow = OtherEntry("bad_entries:slow", only=SHARDED)

    outcomes = together(PLAIN, SHARDED, recipe=slow, warmup_steps=30, hang_after_s=4)

    assert all(isinstance(outcome, Measured) for outcome in outcomes), outcomes


def test_what_goes_wrong_here_ends_all_jobs_first(together, processes, tmp_path):
    def interrupt(phase):
        if phase == "timed":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together(PLAIN, SHARDED, on_phase=interrupt)

    assert [ranks_in(tmp_path / name, processes()) for name in "01"] == [[], []]


class Broken:
    """A launcher that starts nothing, and notes when it is closed."""

    def __init__(self, closed):
        self._closed = closed

    def run(self, job, workdir, on_phase):  # noqa: ARG002 - the port
        raise EnvironmentFault("no processes here; start some")

    def close(self):
        self._closed.append(self)


def test_a_launcher_that_starts_nothing_ends_all_and_those_made_are_closed(
    study, launcher, tmp_path
):
    folders = [tmp_path / str(place) for place in range(3)]
    for folder in folders:
        folder.mkdir()
    closed = []
    evaluator = TrialEvaluator(BuiltinRecipe(), launcher, print, lambda: Broken(closed))

    with pytest.raises(EnvironmentFault, match="no processes here"):
        evaluator.evaluate_together(study, [PLAIN, SHARDED, PLAIN], folders, 0)
    evaluator.close()
    evaluator.close()

    assert len(closed) == 2


CONFIG = Config({"n": 0})


class Ranks:
    """A recipe whose jobs take so many ranks, of so many threads each."""

    def __init__(self, world_size, threads_per_rank=1):
        self._world_size, self._threads = world_size, threads_per_rank

    def job(self, study: Study, config: Config) -> Job:  # noqa: ARG002 - the port
        return Job(
            argv=("true",),
            world_size=self._world_size,
            files={},
            timeout_s=60,
            threads_per_rank=self._threads,
        )


class Meeting:
    """A launcher whose jobs wait for each other; all keep the jobs that they ran in one list."""

    def __init__(self, barrier, ran):
        self._barrier, self._ran = barrier, ran
        self._stopped = Event()

    def run(self, job: Job, workdir: Path, on_phase) -> JobResult:
        on_phase("setup")
        self._barrier.wait(60)
        self._ran.append((self, job))
        return JobResult(workdir=workdir, reason="launcher_lost", ranks=(), wall_s=1.0)


def launched_at_once(places, tmp_path, *, count=2, world_size=1, threads=1):
    """The launchers and jobs of launches in so many threads."""
    barrier, ran = Barrier(count), []
    evaluator = TrialEvaluator(
        Ranks(world_size, threads),
        Meeting(barrier, ran),
        lambda _: None,
        lambda: Meeting(barrier, ran),
        places,
    )
    folders = [tmp_path / str(number) for number in range(count)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(count) as pool:
        at_once = [pool.submit(evaluator.evaluate, testing.study(), CONFIG, f) for f in folders]
    assert all(isinstance(ended.result(), Failed) for ended in at_once)
    return ran


def test_launches_in_threads_have_a_launcher_and_devices_each(tmp_path):
    ran = launched_at_once(DeviceSlots(devices=("4", "5", "6", "7")), tmp_path, world_size=2)

    assert len({id(launcher) for launcher, _ in ran}) == 2
    assert sorted(job.environment[VISIBLE_DEVICES] for _, job in ran) == ["4,5", "6,7"]


def test_launches_in_threads_have_a_core_for_each_thread_of_a_rank(tmp_path):
    ran = launched_at_once(DeviceSlots(cores=(0, 1, 4, 5)), tmp_path, threads=2)

    assert sorted(job.cores for _, job in ran) == [(0, 1), (4, 5)]


@pytest.mark.parametrize(
    "slots", [DeviceSlots(cores=(0, 1)), DeviceSlots()], ids=["too few", "none"]
)
def test_a_launch_that_needs_more_than_there_is_may_use_the_whole_machine(slots, tmp_path):
    ((_, job),) = launched_at_once(slots, tmp_path, count=1, world_size=4)

    assert (job.cores, dict(job.environment)) == ((), {})


@pytest.mark.parametrize(
    ("device", "visible", "slots"),
    [
        ("cuda", None, DeviceSlots(devices=("0", "1"))),
        ("cuda", "3,GPU-5a,7", DeviceSlots(devices=("3", "GPU-5a"))),
        ("cuda", "5", DeviceSlots(devices=("5",))),
        ("cpu", None, DeviceSlots(cores=tuple(sorted(os.sched_getaffinity(0))[:2]))),
    ],
)
def test_slots_are_what_we_may_use_and_the_ranks_can_take(device, visible, slots):
    study = testing.study()
    environment = replace(study.environment, device=device, world_size=2)

    assert device_slots(replace(study, environment=environment), visible) == slots


def test_every_process_of_a_job_stays_on_its_cores(launcher, tmp_path):
    core = max(os.sched_getaffinity(0))
    told = "grep Cpus_allowed_list /proc/self/status"
    job = Job(argv=("bash", "-c", told), world_size=1, files={}, timeout_s=60, cores=(core,))

    launcher.run(job, tmp_path, print)

    assert (tmp_path / "job.log").read_text().split() == ["Cpus_allowed_list:", str(core)]


def test_a_launch_that_another_thread_waits_for_can_be_stopped(launch_environment, tmp_path):
    class Sleeps(Ranks):
        def job(self, study, config):
            endless = "echo $$ > pid; exec sleep 600"
            return replace(super().job(study, config), argv=("bash", "-c", endless))

    launcher, raised = LocalLauncher(launch_environment, threads_per_rank=1), []
    evaluator = TrialEvaluator(Sleeps(1), launcher, lambda _: None)

    def launch():
        try:
            evaluator.evaluate(testing.study(), CONFIG, tmp_path)
        except KeyboardInterrupt as interrupt:
            raised.append(interrupt)

    thread = Thread(target=launch)
    thread.start()
    pid = tmp_path / "pid"
    while not (pid.is_file() and pid.read_text().strip()):
        time.sleep(0.01)
    evaluator.stop()
    alive_after = Path("/proc", pid.read_text().strip(), "exe").exists()
    thread.join(60)

    assert (alive_after, len(raised)) == (False, 1)
    with pytest.raises(KeyboardInterrupt):
        evaluator.evaluate(testing.study(), CONFIG, tmp_path)
