"""Submitting, cancelling and going on: recorded before it is answered, all or nothing."""

from contextlib import closing
from dataclasses import replace

import pytest

from records.codec import utc_now
from records.errors import StoreBusy, StoreError, StudyError, WriterBusy
from records.store.locks import hold_writer
from records.store.rows import PendingTrial
from records.store.store import Store
from records.trial import Policy
from search.service import service as state
from search.service.auth import Caller, Role
from search.service.config import Limits, ServiceConfig
from search.service.limits import TooManyError
from search.service.queue import State
from search.service.runner import Scheduler
from search.service.service import ConflictError, ForbiddenError, NewStudy, Service
from tests.support import records as testing

CI = Caller(name="ci", role=Role.SUBMIT)
OTHER = Caller(name="other", role=Role.SUBMIT)
ASKED = NewStudy(strategy="random", trials=3)
POLICY = Policy(source="pass", author="seed")


@pytest.fixture
def service(tmp_path) -> Service:
    """A service whose scheduler is not started: what is submitted stays queued."""
    root = tmp_path / "store"
    config = ServiceConfig(limits=Limits(queued_studies=2, trials=50))
    return Service(config=config, folder=tmp_path, store=root, tokens=(), scheduler=Scheduler(root))


def over(service: Service, state: State = State.FAILED) -> str:
    """A study that was submitted and has ended."""
    study_id = service.submit(ASKED, CI, None)
    service.records.update(study_id, status="interrupted")
    service.table.change_from(study_id, State.QUEUED, state, message="it broke", crashes=3)
    return study_id


def test_a_submitted_study_is_on_record_and_in_the_queue(service):
    study_id = service.submit(ASKED, CI, None)

    assert service.table.find(study_id).state is State.QUEUED
    assert service.records.find(study_id).status == "queued"
    assert service.status(service.study(study_id)) == "queued"


def test_one_key_makes_one_study_however_often_it_is_sent(service):
    first = service.submit(ASKED, CI, ("key", "digest"))

    assert service.submit(ASKED, CI, ("key", "digest")) == first
    assert service.submit(ASKED, OTHER, ("key", "digest")) != first
    with pytest.raises(ConflictError, match="another request"):
        service.submit(ASKED, CI, ("key", "other"))


def test_a_study_that_cannot_be_recorded_is_not_queued_and_its_key_is_free(service, monkeypatch):
    def full(*_args, **_more):
        raise StoreError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "create", full)
        with pytest.raises(StoreError, match="no space"):
            service.submit(ASKED, CI, ("key", "digest"))

    assert service.table.under_way() == service.table.pending() == ()
    assert service.submit(ASKED, CI, ("key", "digest"))


def test_what_cannot_be_searched_leaves_nothing_behind(service):
    with pytest.raises(StudyError, match="not offered"):
        service.submit(NewStudy(environment="elsewhere"), CI, None)

    assert service.table.under_way() == ()
    assert service.records.study_count() == 0


@pytest.mark.parametrize("why", ["full", "choices"])
def test_a_seed_policy_of_a_refused_study_is_not_kept(service, why):
    more = {"choices": {"none": [1]}} if why == "choices" else {}
    if why == "full":
        service.submit(ASKED, CI, None)
        service.submit(ASKED, CI, None)
    with pytest.raises(StudyError):
        service.submit(NewStudy(seed_source="pass", **more), CI, None)

    assert [*service.store.rglob("*.py")] == []


def test_whoever_comes_while_another_process_writes_is_soon_told_so(service, monkeypatch):
    monkeypatch.setattr(state, "WRITE_WAIT_S", 0.01)
    service.records.close()
    del service._local.records
    with hold_writer(service.store), pytest.raises(WriterBusy):
        service.submit(ASKED, CI, None)

    assert service.table.under_way() == service.table.pending() == ()
    assert service.submit(ASKED, CI, None)


def test_whoever_comes_while_others_are_taken_in_waits_for_a_while(service, monkeypatch):
    monkeypatch.setattr(state, "SUBMIT_WAIT_S", 0.01)
    with service.scheduler.submitting, pytest.raises(TooManyError, match="try again later"):
        service.submit(ASKED, CI, None)


def test_a_full_queue_takes_nothing_more_and_nobody_back(service):
    ended = over(service)
    service.submit(ASKED, CI, None)
    service.submit(ASKED, CI, None)

    with pytest.raises(TooManyError, match="the queue is full"):
        service.submit(ASKED, CI, None)
    with pytest.raises(TooManyError, match="the queue is full"):
        service.resume(ended, None, CI)


def test_a_queued_study_is_cancelled_at_once_and_a_running_one_is_told(service):
    one, two = (service.submit(ASKED, CI, None) for _ in range(2))
    service.table.change_from(two, State.QUEUED, State.RUNNING)

    assert service.cancel(one, CI).state is State.CANCELLED
    assert service.cancel(two, CI).state is State.CANCELLING
    assert service.cancel(two, CI).state is State.CANCELLING
    with pytest.raises(ConflictError, match="nothing runs"):
        service.cancel(one, CI)


def test_only_who_submitted_a_study_and_admins_change_it(service):
    study_id = service.submit(ASKED, CI, None)

    with pytest.raises(ForbiddenError, match="submitted by ci"):
        service.cancel(study_id, OTHER)
    assert service.cancel(study_id, Caller(name="boss", role=Role.ADMIN))


def test_a_study_that_failed_goes_back_to_the_end_of_the_queue(service):
    ended, waiting = over(service), service.submit(ASKED, CI, None)
    service.resume(ended, None, CI)

    row = service.table.find(ended)
    assert (row.state, row.crashes, row.message) == (State.QUEUED, 0, None)
    assert [each.study_id for each in service.table.under_way()] == [waiting, ended]
    assert service.records.find(ended).status == "queued"


def test_a_finished_study_goes_on_only_with_more_trials(service):
    study_id = over(service, State.FINISHED)
    service.records.update(study_id, status="finished")

    with pytest.raises(ConflictError, match="more_trials"):
        service.resume(study_id, None, CI)
    with pytest.raises(StudyError, match="at most 50"):
        service.resume(study_id, 51, CI)
    service.resume(study_id, 7, CI)
    assert service.study(study_id).study.budget.trials == 7
    assert service.status(service.study(study_id)) == "queued"


def test_going_on_again_and_again_is_no_way_around_the_limit(service):
    study_id = over(service, State.FINISHED)
    service.records.update(study_id, status="finished")
    for ordinal in range(3):
        intent = PendingTrial(ordinal=ordinal, policy=POLICY, started_at=utc_now(), exchange=None)
        service.records.begin(study_id, intent, None)
        service.records.finish(study_id, replace(testing.trial(ordinal, 1.0), policy=POLICY))

    with pytest.raises(StudyError, match="48 more make 51 trials; at most 50"):
        service.resume(study_id, 48, CI)
    assert service.table.find(study_id).state is State.FINISHED
    service.resume(study_id, 47, CI)


def test_a_study_that_somebody_searches_by_hand_stays_theirs(service):
    study_id = over(service)
    with closing(Store(service.store)) as other, other.lock(study_id):
        other.update(study_id, status="running")
        assert service.status(service.study(study_id)) == "running"
        with pytest.raises(ConflictError, match="searched by process"):
            service.resume(study_id, 5, CI)


def test_a_study_that_is_under_way_needs_no_resuming(service):
    with pytest.raises(ConflictError, match="continues by itself"):
        service.resume(service.submit(ASKED, CI, None), None, CI)


def test_resuming_that_fails_half_way_leaves_the_study_as_it_was(service, monkeypatch):
    study_id = over(service)
    before = service.table.find(study_id)

    def busy(*_):
        raise StoreBusy("somebody was faster")

    monkeypatch.setattr("search.service.service.extend_budget", busy)
    with pytest.raises(StoreBusy):
        service.resume(study_id, 5, CI)

    assert service.table.find(study_id) == before


def test_a_study_finished_by_hand_after_it_failed_here_is_finished(service):
    study_id = over(service)
    service.records.update(study_id, status="finished")

    assert service.status(service.study(study_id)) == "finished"


def test_a_study_of_the_command_line_is_not_changed_here(service):
    service.records.create("from-a-terminal", service.study(over(service)).study, "test")

    with pytest.raises(ConflictError, match="command line"):
        service.cancel("from-a-terminal", CI)
