"""The queue: every study is searched once at a time, whenever the service is killed."""

import errno
import json
import os
import signal
from collections import defaultdict
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.store.store import Store
from search.service import runner as module
from search.service.queue import Delivery, State
from search.service.runner import next_up, run_folder
from tests.search.service.queueing import Queue, alive, submission

QUEUES = st.lists(
    st.builds(
        submission,
        st.uuids().map(str),
        devices=st.sampled_from(["a", "b"]),
        parallel_studies=st.integers(1, 3),
    ),
    max_size=8,
)


def no_files(*_given, **_more):
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.fixture
def queue(tmp_path):
    with closing(Queue(tmp_path / "store")) as queue:
        yield queue


@pytest.fixture
def running(queue):
    """The process that searches the study `one`."""
    queue.submit("one")
    return queue.until_acts("one")


def test_studies_of_one_environment_run_one_after_the_other_oldest_first(queue):
    for name in ("one", "two"):
        queue.submit(name)
    first = queue.until_acts("one")

    assert queue.found("two").state is State.QUEUED
    queue.store.update("one", status="finished")
    os.kill(first, signal.SIGTERM)
    assert queue.until_over("one").state is State.FINISHED
    queue.until_acts("two")
    assert len(queue.starts("one")) == len(queue.starts("two")) == 1


def test_a_new_service_finds_the_process_of_the_one_before_and_starts_no_second(queue, running):
    queue.restart()
    for _ in range(3):
        queue.tick()

    assert queue.found("one").state is State.RUNNING
    assert queue.starts("one") == [running]
    assert alive(running)


def test_a_service_killed_after_it_started_a_process_and_before_it_could_note_it_adopts_it(queue):
    queue.submit("one")
    queue.scheduler._runner.start("one")  # the row still says queued
    queue.restart()
    process = queue.until_acts("one")
    queue.tick()

    assert queue.found("one").state is State.RUNNING
    assert queue.starts("one") == [process]


def test_a_service_killed_between_claiming_a_study_and_starting_it_starts_it_later(queue):
    queue.submit("one")
    queue.table.change_from("one", State.QUEUED, State.RUNNING)
    queue.restart()
    queue.until_acts("one")

    assert len(queue.starts("one")) == 1


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_service_killed_while_it_takes_a_study_in_has_it_or_not(queue, is_recorded):
    if is_recorded:
        queue.submit("one")
        queue.table.change_from("one", State.QUEUED, State.PENDING)
    else:
        queue.table.add(submission(), ("ci", "key", "digest"))
    queue.restart()
    with queue.scheduler.submitting:  # somebody records it at this moment
        queue.tick()
        assert queue.found("one").state is State.PENDING
    queue.scheduler.recover_pending(queue.table, queue.store)

    row = queue.table.find("one")
    assert (row.state if row else None) == (State.QUEUED if is_recorded else None)
    assert queue.table.submitted_with("ci", "key") is None


@pytest.mark.parametrize(
    ("act", "message", "starts"),
    [
        ("refuse torch is not installed", "torch is not installed", 1),
        (
            "crash Illegal instruction",
            "its process was lost 4 times: Illegal instruction",
            module.MOST_CRASHES + 1,
        ),
    ],
)
def test_a_search_that_cannot_go_on_failed_with_its_reason(queue, act, message, starts):
    queue.submit("one", act)

    over = queue.until_over("one")
    assert (over.state, over.message) == (State.FAILED, message)
    assert len(queue.starts("one")) == starts


def test_a_lost_process_that_got_somewhere_is_not_counted_against_the_study(queue):
    queue.submit("one", "crash")
    queue.table.change_from("one", State.QUEUED, State.RUNNING, crashes=3, launches_before=-1)
    queue.tick()

    assert queue.found("one").crashes == 1
    assert queue.found("one").state is not State.FAILED


def test_what_a_killed_search_left_of_a_line_is_not_part_of_the_next_event(queue):
    queue.submit("one", "torn")
    queue.until_over("one")

    lines = (run_folder(queue.root, "one") / "events.jsonl").read_bytes().split(b"\n")
    started = [line for line in lines if line == b'{"event": "study_started"}']
    assert len(started) == module.MOST_CRASHES + 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_cancelling_asks_the_process_to_end_also_after_a_restart(queue, running, is_restarted):
    queue.table.change_from("one", State.RUNNING, State.CANCELLING)
    if is_restarted:
        queue.restart()

    assert queue.until_over("one").state is State.CANCELLED
    queue.until(lambda: not alive(running))


def test_a_process_that_does_not_end_when_it_is_told_to_is_killed(queue, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    queue.submit("one", "ignore")
    process = queue.until_acts("one")
    queue.until(lambda: (run_folder(queue.root, "one") / "ignores").exists())
    queue.table.change_from("one", State.RUNNING, State.CANCELLING)

    assert queue.until_over("one").state is State.CANCELLED
    queue.until(lambda: not alive(process))


def test_a_study_cancelled_before_its_process_started_never_starts(queue):
    queue.submit("one")
    row = queue.found("one")
    queue.table.change_from("one", State.QUEUED, State.CANCELLED)
    queue.scheduler._start(row, queue.table)  # the scheduler had read the row before
    queue.tick()

    assert queue.starts("one") == []
    assert queue.store.find("one").status == "interrupted"


@pytest.mark.usefixtures("running")
def test_a_search_that_finished_although_it_was_cancelled_is_finished(queue):
    queue.store.update("one", status="finished")
    queue.table.change_from("one", State.RUNNING, State.CANCELLING)

    assert queue.until_over("one").state is State.FINISHED


def test_nothing_starts_while_somebody_searches_the_same_records_by_hand(queue):
    queue.submit("one")
    queue.store.create("from-a-terminal", queue.store.find("one").study, "test")
    with closing(Store(queue.root)) as other, other.lock("from-a-terminal"):
        queue.tick()
        assert queue.found("one").state is State.QUEUED
        assert queue.scheduler.waits_for.startswith("study from-a-terminal, which process")
    queue.until_acts("one")

    assert queue.scheduler.waits_for is None


def test_a_study_that_is_gone_on_with_by_hand_keeps_its_devices(queue, running):
    queue.submit("two")
    with closing(Store(queue.root)) as other, other.lock("one"):
        os.kill(running, signal.SIGKILL)
        queue.until(lambda: not alive(running))
        queue.tick()
        queue.tick()
        assert queue.found("one").state is State.RUNNING
        assert queue.found("two").state is State.QUEUED


def test_what_cannot_be_started_stays_in_the_queue_and_is_told(queue):
    queue.submit("one")
    run_folder(queue.root, "one").joinpath("lock").mkdir()
    queue.tick()

    assert queue.found("one").state is State.QUEUED
    assert "cannot be started" in queue.scheduler.faults[0]
    run_folder(queue.root, "one").joinpath("lock").rmdir()
    queue.until_acts("one")
    assert queue.scheduler.faults == ()


@pytest.mark.usefixtures("running")
def test_what_the_system_refuses_is_a_fault_and_not_the_end_of_the_keeper(queue, monkeypatch):
    def foreign(*_given):
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(module, "claim", no_files)
        queue.tick()
        assert "Too many open files" in queue.scheduler.faults[0]
        assert queue.found("one").state is State.RUNNING
    queue.table.change_from("one", State.RUNNING, State.CANCELLING)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", foreign)
        queue.tick()
        assert "belongs to another user" in queue.scheduler.faults[0]
    queue.tick()
    assert queue.scheduler.faults == ()


@pytest.mark.parametrize("trouble", ["no files", "garbage"])
def test_a_keeper_that_cannot_open_its_files_for_a_while_lives_on(
    queue, tmp_path, monkeypatch, trouble
):
    scheduler, table = module.Scheduler(tmp_path / "other"), tmp_path / "other/service/queue.db"
    with monkeypatch.context() as patched:
        if trouble == "garbage":
            table.parent.mkdir(parents=True)
            table.write_bytes(b"garbage" * 1000)
        else:
            patched.setattr(module, "Store", no_files)
        scheduler.start()
        queue.until(lambda: scheduler.faults)
        assert scheduler.lives
        if trouble == "garbage":
            table.unlink()
    queue.until(lambda: scheduler.wake() or not scheduler.faults)
    assert scheduler.lives
    scheduler.close()


def test_a_record_that_is_gone_is_a_failure_with_words(queue):
    queue.table.add(submission("gone"))
    queue.table.change_from("gone", State.PENDING, State.RUNNING)

    assert queue.until_over("gone").message == "it is not recorded"


def test_an_end_is_laid_out_for_those_who_are_told(tmp_path):
    def told(submitted, _records):
        body = json.dumps({"status": submitted.state})
        return [Delivery(id="1", study_id=submitted.study_id, url="http://x", body=body)]

    with closing(Queue(tmp_path / "store", told)) as queue:
        queue.submit("one", "refuse no")
        queue.until_over("one")
        queue.tick()

        assert [each.body for each in queue.table.deliveries()] == ['{"status": "failed"}']


@given(QUEUES)
def test_devices_never_bear_more_than_the_strictest_of_those_on_them_allows(queue):
    running = ()
    while queue:
        started = next_up(queue, running)
        running = (*running, *started)
        on = defaultdict(list)
        for one in running:
            on[one.devices].append(one.parallel_studies)
        assert all(len(there) <= min(there) for there in on.values())
        assert started or running  # something goes on, or the queue would stand for ever
        queue = [one for one in queue if one not in started]
        running = running[1:]


@given(QUEUES)
def test_on_one_device_nobody_overtakes_who_came_earlier(queue):
    started = next_up(queue, ())

    for devices in "ab":
        there = [one for one in queue if one.devices == devices]
        count = sum(one.devices == devices for one in started)
        assert [one for one in started if one.devices == devices] == there[:count]


def test_environments_that_share_devices_wait_for_each_other():
    first, second = submission("first"), submission("second", parallel_studies=2)

    assert next_up([second], [first]) == next_up([first], [second]) == ()
