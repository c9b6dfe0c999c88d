"""The queue: every study is searched once at a time, whenever the service is killed."""

import errno
import json
import os
import signal
from contextlib import closing

import pytest

from records.store.store import Store
from search.service import runner as module
from search.service.queue import Delivery, State
from search.service.runner import run_folder
from tests.search.service.queueing import Queue, alive, submission


@pytest.fixture
def queue(tmp_path):
    with closing(Queue(tmp_path / "store")) as queue:
        yield queue


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


def test_a_new_service_finds_the_process_of_the_one_before_and_starts_no_second(queue):
    queue.submit("one")
    process = queue.until_acts("one")
    queue.restart()
    for _ in range(3):
        queue.tick()

    assert queue.found("one").state is State.RUNNING
    assert queue.starts("one") == [process]
    assert alive(process)


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
    queue.scheduler.recover_pending(queue.table, queue.store)

    row = queue.table.find("one")
    assert (row.state if row else None) == (State.QUEUED if is_recorded else None)
    assert queue.table.submitted_with("ci", "key") is None


def test_a_search_that_says_why_it_cannot_go_on_failed_for_that_reason(queue):
    queue.submit("one", "refuse torch is not installed")

    over = queue.until_over("one")
    assert (over.state, over.message) == (State.FAILED, "torch is not installed")
    assert queue.starts("one") and len(queue.starts("one")) == 1


def test_a_lost_process_is_started_again_until_it_gets_nowhere_too_often(queue):
    queue.submit("one", "crash Illegal instruction")

    over = queue.until_over("one")
    assert over.state is State.FAILED
    assert over.message == "its process was lost 4 times: Illegal instruction"
    assert len(queue.starts("one")) == module.MOST_CRASHES + 1


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


def test_cancelling_asks_the_process_to_end(queue):
    queue.submit("one")
    process = queue.until_acts("one")
    queue.table.change_from("one", State.RUNNING, State.CANCELLING)

    assert queue.until_over("one").state is State.CANCELLED
    assert not alive(process)


def test_a_study_cancelled_while_the_service_was_down_is_ended_when_it_is_back(queue):
    queue.submit("one")
    process = queue.until_acts("one")
    queue.table.change_from("one", State.RUNNING, State.CANCELLING)
    queue.restart()

    assert queue.until_over("one").state is State.CANCELLED
    assert not alive(process)


def test_a_process_that_does_not_end_when_it_is_told_to_is_killed(queue, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    queue.submit("one", "ignore")
    process = queue.until_acts("one")
    queue.until(lambda: (run_folder(queue.root, "one") / "ignores").exists())
    queue.table.change_from("one", State.RUNNING, State.CANCELLING)

    assert queue.until_over("one").state is State.CANCELLED
    assert not alive(process)


def test_a_study_cancelled_before_its_process_started_never_starts(queue):
    queue.submit("one")
    row = queue.found("one")
    queue.table.change_from("one", State.QUEUED, State.CANCELLED)
    queue.scheduler._start(row, queue.table)  # the scheduler had read the row before
    queue.tick()

    assert queue.starts("one") == []
    assert queue.store.find("one").status == "interrupted"


def test_a_search_that_finished_although_it_was_cancelled_is_finished(queue):
    queue.submit("one")
    queue.until_acts("one")
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


def test_a_study_that_is_gone_on_with_by_hand_keeps_its_devices(queue):
    queue.submit("one")
    queue.submit("two")
    process = queue.until_acts("one")
    with closing(Store(queue.root)) as other, other.lock("one"):
        os.kill(process, signal.SIGKILL)
        queue.until(lambda: not alive(process))
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


def test_a_process_of_another_user_is_a_fault_and_not_the_end_of_the_keeper(queue, monkeypatch):
    def refuse(*_):
        raise PermissionError

    queue.submit("one")
    queue.until_acts("one")
    queue.table.change_from("one", State.RUNNING, State.CANCELLING)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", refuse)
        queue.tick()
        assert "belongs to another user" in queue.scheduler.faults[0]


def test_a_want_of_files_does_not_end_the_keeper(queue, monkeypatch):
    def refuse(*_given):
        raise OSError(errno.EMFILE, "Too many open files")

    queue.submit("one")
    queue.until_acts("one")
    with monkeypatch.context() as patched:
        patched.setattr("search.service.runner.claim", refuse)
        queue.tick()
        assert "Too many open files" in queue.scheduler.faults[0]
        assert queue.found("one").state is State.RUNNING
    queue.tick()
    assert queue.scheduler.faults == ()


def test_a_keeper_that_cannot_open_the_records_for_a_while_lives_on(queue, tmp_path, monkeypatch):
    def refuse(*_given, **_more):
        raise OSError(errno.EMFILE, "Too many open files")

    scheduler = module.Scheduler(tmp_path / "other")
    with monkeypatch.context() as patched:
        patched.setattr(module, "Store", refuse)
        scheduler.start()
        queue.until(lambda: "Too many open files" in str(scheduler.faults))
        assert scheduler.lives
    queue.until(lambda: scheduler.wake() or not scheduler.faults)
    assert scheduler.lives
    scheduler.close()


def test_a_study_that_failed_to_be_taken_in_is_settled_at_the_next_look(queue):
    queue.submit("one")
    queue.table.change_from("one", State.QUEUED, State.PENDING)
    with queue.scheduler.submitting:  # somebody records it at this moment
        queue.tick()
        assert queue.found("one").state is State.PENDING

    queue.until_acts("one")
    assert queue.found("one").state is State.RUNNING


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


def test_a_keeper_over_a_garbage_queue_lives_on_and_works_once_it_is_gone(queue, tmp_path):
    root = tmp_path / "other"
    (root / "service").mkdir(parents=True)
    (root / "service" / "queue.db").write_bytes(b"garbage" * 1000)
    scheduler = module.Scheduler(root)
    scheduler.start()
    try:
        queue.until(lambda: scheduler.faults)
        assert scheduler.lives
        (root / "service" / "queue.db").unlink()
        queue.until(lambda: scheduler.wake() or not scheduler.faults)
        assert scheduler.lives
    finally:
        scheduler.close()
