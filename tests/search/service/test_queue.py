"""The queue on disk: all or nothing, and refused in words where it cannot be used."""

import sqlite3
from contextlib import closing

import pytest

from records.errors import StoreError
from search.service.queue import Delivery, RunTable, State
from tests.search.service.queueing import submission


@pytest.fixture
def table(tmp_path):
    with closing(RunTable(tmp_path / "service" / "queue.db")) as table:
        yield table


def test_what_was_put_in_comes_out_as_it_was_also_when_it_is_opened_again(table, tmp_path):
    one = submission()
    table.add(one)

    with closing(RunTable(tmp_path / "service" / "queue.db")) as again:
        assert again.find("one") == one
        assert again.pending() == (one,)
        assert again.find("two") is None


def test_a_row_changes_only_from_the_state_that_is_named(table):
    table.add(submission())

    assert not table.change_from("one", State.QUEUED, State.RUNNING)
    assert table.change_from("one", State.PENDING, State.QUEUED, crashes=2)
    assert (table.find("one").state, table.find("one").crashes) == (State.QUEUED, 2)


def test_an_idempotency_key_is_recorded_with_its_study_or_not_at_all(table):
    table.add(submission(), ("ci", "key", "digest"))
    with pytest.raises(StoreError, match="UNIQUE"):
        table.add(submission("two"), ("ci", "key", "another"))

    assert table.submitted_with("ci", "key") == ("digest", "one")
    assert table.submitted_with("other", "key") is None
    assert table.find("two") is None
    table.forget("one")
    assert table.submitted_with("ci", "key") is None
    assert table.pending() == ()


def test_the_queue_is_in_the_order_of_queueing_not_of_submission(table):
    for name in ("one", "two"):
        table.add(submission(name))
        table.change_from(name, State.PENDING, State.QUEUED)
    table.change_from("one", State.QUEUED, State.QUEUED, queued_at="9999")

    assert [row.study_id for row in table.under_way()] == ["two", "one"]


def test_an_end_is_laid_out_once_and_again_after_the_next_end(table):
    table.add(submission())
    table.change_from("one", State.PENDING, State.CANCELLED)
    table.change_from("one", State.CANCELLED, State.FAILED)
    table.enqueue("one", [Delivery(id="d", study_id="one", url="http://x", body="{}")])

    assert table.unnotified() == ()
    assert [each.id for each in table.deliveries()] == ["d"]
    table.change_from("one", State.FAILED, State.PENDING)
    table.change_from("one", State.PENDING, State.FAILED)  # resuming it was refused
    assert table.unnotified() == ()
    table.change_from("one", State.FAILED, State.QUEUED)
    table.change_from("one", State.QUEUED, State.CANCELLED)
    assert [each.study_id for each in table.unnotified()] == ["one"]


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + b"x" * 5000])
def test_a_queue_that_is_garbage_is_refused_in_one_line(content, tmp_path):
    path = tmp_path / "queue.db"
    path.write_bytes(content)

    with pytest.raises(StoreError, match="cannot use the queue") as refused:
        RunTable(path)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == content


def test_a_queue_of_another_version_or_under_a_file_is_left_alone(tmp_path):
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=99")

    with pytest.raises(StoreError, match="another version"):
        RunTable(path)
    with pytest.raises(StoreError, match="cannot use the queue"):
        RunTable(path / "service" / "queue.db")


def test_a_queue_that_another_holds_for_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("search.service.queue.BUSY_S", 0.01)
    path = tmp_path / "queue.db"
    with closing(RunTable(path)) as ours, closing(sqlite3.connect(path)) as other:
        other.execute("begin exclusive")
        with pytest.raises(StoreError, match="locked"):
            ours.add(submission())
        other.rollback()

        ours.add(submission())
