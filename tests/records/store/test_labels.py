"""Tags, notes and the archive mark of a study: recorded like all of it, found by tag."""

from contextlib import closing

import pytest

from records.errors import StudyError
from records.store.queries import StudyQuery
from records.store.rows import MOST_TAGS, NOTES_CHARS, TAG_CHARS, Labels
from records.store.store import Store
from tests.support import records as testing

LABELS = Labels(tags=("a", "b"), notes="one\ntwo", archived=True)


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path)) as opened:
        for study_id in ("20260101-000000-aaaa", "20260102-000000-bbbb"):
            opened.create(study_id, testing.study(), "test")
        yield opened


def test_labels_are_recorded_and_survive_the_loss_of_the_database(store, tmp_path):
    store.label("20260101-000000-aaaa", LABELS)
    store.update("20260101-000000-aaaa", status="finished")

    assert store.find("20260101").labels == LABELS
    assert store.find("20260102").labels == Labels()
    store.close()
    for path in tmp_path.glob("cclsearch.db*"):
        path.unlink()
    with closing(Store(tmp_path)) as again:
        assert again.find("20260101").labels == LABELS


def test_a_running_study_is_labelled(store):
    with store.lock("20260101-000000-aaaa"):
        store.label("20260101-000000-aaaa", LABELS)

    assert store.find("20260101").labels == LABELS


def test_studies_are_found_by_tag_and_by_archive(store):
    store.label("20260101-000000-aaaa", LABELS)
    store.label("20260102-000000-bbbb", Labels(tags=("b",)))

    def ids(**asked):
        return [row.id[-4:] for row in store.study_page(StudyQuery(**asked))[0]]

    assert ids() == ["bbbb", "aaaa"]
    assert ids(tag="a") == ["aaaa"]
    assert ids(tag="b", archived=False) == ["bbbb"]
    assert ids(archived=True) == ["aaaa"]
    assert ids(tag="'") == []
    assert ids(sort="created_at", descending=False) == ["aaaa", "bbbb"]
    assert store.tags(9) == ("a", "b")


def test_the_newest_study_is_one_that_is_not_archived(store):
    store.label("20260102-000000-bbbb", Labels(archived=True))

    assert store.find("").id == "20260101-000000-aaaa"


def test_a_change_keeps_what_it_does_not_name():
    assert LABELS.change(tags=["c", "b", "c"]).tags == ("b", "c")
    assert LABELS.change(notes="  new \n").notes == "new"
    assert LABELS.change(notes="a\r\nb").notes == "a\nb"  # as browsers send it
    assert LABELS.change(archived=False) == Labels(tags=("a", "b"), notes="one\ntwo")


@pytest.mark.parametrize(
    "given",
    [
        {"tags": ["two words"]},
        {"tags": [""]},
        {"tags": ["<b>"]},
        {"tags": ["x" * (TAG_CHARS + 1)]},
        {"tags": map(str, range(MOST_TAGS + 1))},
        {"notes": "x" * (NOTES_CHARS + 1)},
    ],
)
def test_what_is_no_label_is_refused(given):
    with pytest.raises(StudyError, match=r"tag|notes"):
        LABELS.change(**given)
