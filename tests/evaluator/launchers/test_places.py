"""Launches in several threads: each has devices or cores of its own, and all can be stopped."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.interleaved import VISIBLE_DEVICES, DeviceSlots, device_slots
from evaluator.launchers.local import LocalLauncher
from evaluator.ports import Job, JobResult
from records.study import Study
from records.trial import Config, Failed
from tests.support import records as testing

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
        return JobResult(workdir=workdir, reason="timeout", ranks=(), wall_s=1.0)


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
