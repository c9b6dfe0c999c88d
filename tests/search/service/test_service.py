"""Submitting, cancelling and going on, all or nothing; and what remote users may choose."""

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.contract import seed_names
from records.codec import utc_now
from records.errors import StoreBusy, StoreError, StudyError, WriterBusy
from records.store.locks import hold_writer
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Command, Dimension, Launch
from records.trial import Policy
from search.compose import STRATEGIES
from search.service import service as module
from search.service.auth import Caller, Role, TooManyError
from search.service.config import Limits, ServiceConfig
from search.service.queue import State
from search.service.runner import Scheduler
from search.service.service import ConflictError, ForbiddenError, NewStudy, Service, study_of
from search.study.study_file import builtin_study
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


@pytest.fixture
def failed(service) -> str:
    """A study that was submitted and has failed."""
    return over(service)


@pytest.fixture
def finished(service) -> str:
    """A study that was submitted and has finished."""
    study_id = over(service, State.FINISHED)
    service.records.update(study_id, status="finished")
    return study_id


def over(service: Service, state: State = State.FAILED) -> str:
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


def test_what_cannot_be_recorded_or_searched_leaves_nothing_behind(service, monkeypatch):
    def full(*_args, **_more):
        raise StoreError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "create", full)
        with pytest.raises(StoreError, match="no space"):
            service.submit(ASKED, CI, ("key", "digest"))
    with pytest.raises(StudyError, match="not offered"):
        service.submit(NewStudy(environment="elsewhere"), CI, None)

    assert service.table.under_way() == service.table.pending() == ()
    assert service.records.study_count() == 0
    assert service.submit(ASKED, CI, ("key", "digest"))


def test_whoever_comes_while_others_write_is_soon_told_so(service, monkeypatch):
    monkeypatch.setattr(module, "WRITE_WAIT_S", 0.01)
    monkeypatch.setattr(module, "SUBMIT_WAIT_S", 0.01)
    assert service.records.study_count() == 0
    with hold_writer(service.store), pytest.raises(WriterBusy):
        service.submit(ASKED, CI, None)
    with service.scheduler.submitting, pytest.raises(TooManyError, match="try again later"):
        service.submit(ASKED, CI, None)

    assert service.table.under_way() == service.table.pending() == ()
    assert service.submit(ASKED, CI, None)


def test_a_full_queue_takes_nothing_more_and_nobody_back(service, failed):
    service.submit(ASKED, CI, None)
    service.submit(ASKED, CI, None)

    for refused in (
        lambda: service.submit(NewStudy(seed_source="pass"), CI, None),
        lambda: service.resume(failed, None, CI),
    ):
        with pytest.raises(TooManyError, match="the queue is full"):
            refused()
    with pytest.raises(StudyError):
        service.submit(NewStudy(seed_source="pass", choices={"none": [1]}), CI, None)
    assert [*service.store.rglob("*.py")] == []  # no seed policy of a refused study is kept


def test_a_queued_study_is_cancelled_at_once_and_a_running_one_is_told(service):
    one, two = (service.submit(ASKED, CI, None) for _ in range(2))
    service.table.change_from(two, State.QUEUED, State.RUNNING)

    with pytest.raises(ForbiddenError, match="submitted by ci"):
        service.cancel(one, OTHER)
    assert service.cancel(one, CI).state is State.CANCELLED
    assert service.cancel(two, CI).state is State.CANCELLING
    assert service.cancel(two, Caller(name="boss", role=Role.ADMIN)).state is State.CANCELLING
    with pytest.raises(ConflictError, match="nothing runs"):
        service.cancel(one, CI)


def test_a_study_that_failed_goes_back_to_the_end_of_the_queue(service, failed):
    waiting = service.submit(ASKED, CI, None)
    service.resume(failed, None, CI)

    row = service.table.find(failed)
    assert (row.state, row.crashes, row.message) == (State.QUEUED, 0, None)
    assert [each.study_id for each in service.table.under_way()] == [waiting, failed]
    assert service.records.find(failed).status == "queued"
    with pytest.raises(ConflictError, match="continues by itself"):
        service.resume(failed, None, CI)


def test_a_finished_study_goes_on_only_with_more_trials(service, finished):
    with pytest.raises(ConflictError, match="more_trials"):
        service.resume(finished, None, CI)
    with pytest.raises(StudyError, match="at most 50"):
        service.resume(finished, 51, CI)
    service.resume(finished, 7, CI)
    assert service.study(finished).study.budget.trials == 7
    assert service.status(service.study(finished)) == "queued"


def test_going_on_again_and_again_is_no_way_around_the_limit(service, finished):
    for ordinal in range(3):
        intent = PendingTrial(ordinal=ordinal, policy=POLICY, started_at=utc_now(), exchange=None)
        service.records.begin(finished, intent, None)
        service.records.finish(finished, replace(testing.trial(ordinal, 1.0), policy=POLICY))

    with pytest.raises(StudyError, match="48 more make 51 trials; at most 50"):
        service.resume(finished, 48, CI)
    assert service.table.find(finished).state is State.FINISHED
    service.resume(finished, 47, CI)


def test_a_study_that_somebody_searches_by_hand_stays_theirs(service, failed):
    with closing(Store(service.store)) as other, other.lock(failed):
        other.update(failed, status="running")
        assert service.status(service.study(failed)) == "running"
        with pytest.raises(ConflictError, match="searched by process"):
            service.resume(failed, 5, CI)
        other.update(failed, status="finished")
        assert service.status(service.study(failed)) == "finished"


def test_resuming_that_fails_half_way_leaves_the_study_as_it_was(service, failed, monkeypatch):
    def busy(*_):
        raise StoreBusy("somebody was faster")

    before = service.table.find(failed)
    monkeypatch.setattr(module, "extend_budget", busy)
    with pytest.raises(StoreBusy):
        service.resume(failed, 5, CI)

    assert service.table.find(failed) == before


def test_a_study_of_the_command_line_is_not_changed_here(service, failed):
    service.records.create("from-a-terminal", service.study(failed).study, "test")

    with pytest.raises(ConflictError, match="command line"):
        service.cancel("from-a-terminal", CI)


OWN = builtin_study(testing.ENVIRONMENT)
ATTACKS = [
    "/etc/passwd", "../../key", "$(id)", "; rm -rf ~", "`id`", "--store=/tmp", "-c", "{knob:x}",
    "${HOME}", "LD_PRELOAD=x", "__import__('os')", "offline", "sharded", "step_time", "tp", "dp",
    "a\x1b[31m", "\u202e", "\ud800", "",
]  # fmt: skip
TEXTS = st.sampled_from(ATTACKS) | st.text(max_size=30)
NUMBERS = st.integers(-5, 10**10) | st.floats() | st.booleans()
ANYTHING = st.recursive(
    TEXTS | NUMBERS | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
"""Whatever JSON may hold, in any place."""
FIELDS = st.sampled_from([*NewStudy.model_fields])
PLAUSIBLE = st.fixed_dictionaries(
    {},
    optional={
        "name": TEXTS,
        "objectives": st.lists(st.sampled_from(["step_time", "mfu", *ATTACKS]), max_size=3),
        "direction": st.sampled_from(["minimize", "maximize"]),
        "limits": st.lists(st.sampled_from(["peak_memory < 1e9", *ATTACKS]), max_size=2),
        "strategy": st.sampled_from([*STRATEGIES, *ATTACKS]),
        "seed_policy": st.sampled_from([*seed_names(), *ATTACKS]),
        "seed_source": TEXTS,
        "trials": st.integers(1, 300),
        "parallel": st.integers(1, 8),
        "choices": st.dictionaries(st.sampled_from(["tp", "dp", *ATTACKS]), st.lists(TEXTS)),
    },
)


@settings(max_examples=40)
@given(PLAUSIBLE | st.dictionaries(FIELDS | TEXTS, ANYTHING, max_size=4))
@example({"seed_policy": "/etc/passwd"})
@example({"seed_source": "import os\nos.system('id')\n", "name": "x"})
@example({"choices": {"tp": ["/etc/passwd"]}})
def test_nothing_that_is_submitted_becomes_a_command_a_path_or_a_variable(tmp_path, document):
    try:
        asked = NewStudy.model_validate(document)
        study = study_of(asked, OWN, ServiceConfig(), tmp_path / "policies")
    except (ValueError, StudyError) as error:
        assert str(error)
        return
    finally:
        assert {path.name for path in tmp_path.iterdir()} <= {"policies"}
    for field in ("command", "launch", "environment", "measure", "contexts", "origin", "replay_of"):
        assert getattr(study, field) == getattr(OWN, field)
    assert study.llm.base_url == OWN.llm.base_url
    assert study.strategy in STRATEGIES
    assert study.seed_policy in seed_names() or Path(study.seed_policy).parent == (
        tmp_path / "policies"
    )
    assert not re.search("[\x00-\x1f\x7f-\x9f]", study.name)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        *(
            ({field: {"run": ["id"]}}, field)
            for field in (
                "command", "launch", "llm", "measure", "contexts", "card", "replay_of", "from",
                "store", "random_seed", "machine", "space", "__class__",
            )
        ),
        ({"environment": "other"}, "is not offered; known are builtin"),
        ({"environment": "../builtin"}, "is not offered"),
        ({"seed_policy": "/etc/passwd"}, "no built-in seed policy"),
        ({"strategy": "replay"}, "is not offered here"),
        ({"trials": 201}, "at most 200 are allowed"),
        ({"choices": {"LD_PRELOAD": ["x"]}}, "no knob 'LD_PRELOAD'"),
        ({"objectives": ["__import__('os')"]}, ""),
        ({"limits": ["step_time < open('/etc/passwd')"]}, ""),
        ({"name": "a\x1b[31m"}, "name"),
        ({"name": "\ud800"}, ""),
        ({"seed_source": "\ud800"}, ""),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_refused_in_words(shared, document, words):
    before = shared.service.table.under_way()
    with shared.client("submit") as program:
        headers = {"content-type": "application/json"}
        answer = program.post("/api/v1/studies", content=json.dumps(document), headers=headers)
    assert answer.status_code == 422
    assert words in answer.json()["error"]
    assert shared.service.table.under_way() == before


def test_the_model_costs_no_more_than_the_operator_allows(tmp_path):
    config, asked = ServiceConfig(limits=Limits(cost_usd=2)), NewStudy(strategy="offline")
    less, more = (asked.model_copy(update={"max_cost_usd": usd}) for usd in (0.5, 3.0))

    assert study_of(asked, OWN, config, tmp_path).budget.max_cost_usd == 2
    assert study_of(less, OWN, config, tmp_path).budget.max_cost_usd == 0.5
    with pytest.raises(StudyError, match="at most 2 is allowed"):
        study_of(more, OWN, config, tmp_path)


def test_a_configured_command_stays_as_the_operator_wrote_it(tmp_path):
    base = replace(
        testing.study(Dimension(name="lr", choices=("1", "2"))),
        command=Command(run=("true",), rank_count="world_size", export={"lr": "LR"}),
        launch=Launch(recipe="command"),
    )
    asked = NewStudy(name="$(id)", choices={"lr": ["2"]}, strategy="offline")
    study = study_of(asked, base, ServiceConfig(), tmp_path)
    assert study.command == base.command
    assert study.space.dimensions[0].choices == ("2",)
    with pytest.raises(StudyError, match="is none of 'lr'"):
        study_of(NewStudy(choices={"lr": ["2; id"]}), base, ServiceConfig(), tmp_path)
