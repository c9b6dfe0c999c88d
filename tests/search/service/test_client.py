"""`cclsearch.Client` against the real service."""

import pytest
from pandas.testing import assert_frame_equal

import cclsearch
from records.errors import EnvironmentFault, StudyError
from search.client.client import Client, NotAllowed, NotThere, ServiceRefused, StillRunning
from tests.search.service.conftest import FAILED, FINISHED, IMPORTED


@pytest.fixture
def connect(served):
    """Makes clients with the token of a role."""
    opened = []

    def make(role="admin", **more):
        opened.append(Client(served.url, served.tokens[role], patience_s=0, **more))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


def test_the_client_is_a_public_name():
    assert cclsearch.Client is Client


def test_studies_come_newest_first(connect):
    found = list(connect("read").studies())

    assert [study.id for study in found] == [IMPORTED, FAILED, FINISHED]
    assert found[2].best.value == 0.25


def test_the_trials_of_a_study_are_the_table_that_its_records_give_here(connect, served):
    frame = connect().study(FINISHED).trials()

    assert_frame_equal(frame, cclsearch.trials(FINISHED, served.service.store))


def test_trials_beyond_a_page_are_fetched_too(connect, monkeypatch):
    monkeypatch.setattr("search.client.client.PAGE", 1)

    frame = connect().study(FINISHED).trials()

    assert list(frame["ordinal"]) == [0, 1, 2, 3]


def test_a_trial_has_its_metrics_and_what_it_was_for(connect):
    trial = connect().study(FINISHED).trial(2)

    assert (trial.ordinal, trial.score.value, trial.score.unit) == (2, 0.25, "s")
    assert trial.rationale.startswith("try <img")


def test_a_policy_tells_what_changed(connect):
    study = connect().study(FINISHED)
    first, second, *_ = study.policies()

    policy = study.policy(second.digest)

    assert policy.parent == first.digest
    assert "+print(1)" in policy.diff


def test_two_trials_are_compared_in_words(connect):
    found = connect("read").compare(f"{FINISHED}:0", FINISHED)

    (row,) = found.comparison.rows
    assert row.words.startswith("undecided")
    assert found.comparison.unit == "s"


def test_the_leaderboard_is_told(connect):
    board = connect("read").leaderboard({"by": "step_time"})

    assert board.items[0].ranked_by == "step_time"


def test_a_file_of_a_trial_is_saved_whole(connect, tmp_path):
    study = connect().study(FINISHED)
    (file,) = study.files(0)

    path = study.download(0, file.name, tmp_path / "rank0.log")

    assert path.read_text(encoding="utf-8").startswith("step 1 <img")
    assert path.stat().st_size == file.size_bytes
    assert [other.name for other in tmp_path.glob("*.part")] == []


def test_a_file_that_cannot_be_written_is_an_error_of_this_machine(connect, tmp_path):
    study = connect().study(FINISHED)

    with pytest.raises(EnvironmentFault, match="cannot write"):
        study.download(0, "logs/rank0.log", tmp_path / "nowhere" / "rank0.log")


def test_a_study_is_submitted_watched_and_cancelled(connect):
    client = connect("submit")

    study = client.submit(objectives=["step_time"], trials=3, strategy="offline")
    status = study.now().status
    after = study.cancel()

    assert (status, after) == ("queued", "cancelled")
    assert study.wait().status == "cancelled"
    assert study.resume() == "queued"


def test_the_same_key_makes_one_study(connect):
    client = connect("submit")

    first = client.submit(trials=3, strategy="offline", key="nightly-1")
    again = client.submit(trials=3, strategy="offline", key="nightly-1")

    assert first.id == again.id


def test_the_same_request_without_a_key_makes_two_studies(connect):
    client = connect("submit")

    assert client.submit(trials=3).id != client.submit(trials=3).id


def test_waiting_for_a_study_that_goes_on_ends_with_an_error(connect):
    study = connect(sleep=lambda _s: None).submit(trials=3)

    with pytest.raises(StillRunning, match=f"study {study.id} is queued after 0 s"):
        study.wait(timeout_s=0)


def test_waiting_for_a_study_that_is_over_gives_it_at_once(connect):
    assert connect().study(FINISHED).wait().best.value == 0.25


def test_the_environments_are_told(connect):
    assert [one.name for one in connect("read").environments()] == ["builtin"]


def test_a_study_that_is_not_there_is_an_error(connect):
    with pytest.raises(NotThere, match="no study '2027'"):
        connect().study("2027")


@pytest.mark.parametrize("study_id", ["../admin", "x?limit=1", "", ".."])
def test_an_id_cannot_lead_elsewhere(connect, study_id):
    with pytest.raises(NotThere):
        connect().study(study_id)


def test_a_token_for_reading_submits_nothing(connect):
    with pytest.raises(NotAllowed, match="role submit"):
        connect("read").submit(trials=3)


def test_an_unknown_token_is_refused(served):
    with Client(served.url, "of nobody") as client, pytest.raises(NotAllowed, match="token"):
        client.environments()


def test_the_link_that_is_printed_is_address_and_token(served):
    with Client(f"{served.url}/?token={served.tokens['read']}") as client:
        assert len(list(client.studies())) == 3


def test_address_and_token_may_come_from_the_environment(served, monkeypatch):
    monkeypatch.setenv("CCLSEARCH_URL", served.url)
    monkeypatch.setenv("CCLSEARCH_TOKEN", served.tokens["read"])

    with Client() as client:
        assert len(list(client.studies())) == 3


def test_what_cannot_be_searched_is_refused_in_the_words_of_the_service(connect):
    with pytest.raises(ServiceRefused, match="environment 'moon' is not offered"):
        connect().submit("moon")


@pytest.mark.parametrize(
    "url", ["", "ftp://here", "127.0.0.1:8765", "http://", "http://me:pw@here", "http://h:x"]
)
def test_what_is_no_address_is_an_error_of_whoever_gave_it(url):
    with pytest.raises(StudyError, match="URL"):
        Client(url or " ")
