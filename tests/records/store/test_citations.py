"""What the records say of kept files: every place that names one counts."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from records.errors import StoreError
from records.machine import LaunchRecord
from records.store.store import Store
from records.trial import Repeat
from tests.support.records import END, EXCHANGE, intent, measured, study, trial

STUDY = "20260101-000000-aaaa"


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path)) as store:
        store.create(STUDY, study(), "1")
        yield store


def kept(store, name):
    return store.artifacts.keep_text(f"what {name} holds", name)


def test_files_of_trials_repeats_conversations_and_machines_are_cited(store):
    trace, again, machine = (kept(store, name) for name in ("trace", "again", "machine"))
    said = store.begin(STUDY, intent(0), EXCHANGE).exchange
    launched = LaunchRecord(argv=("x",), reason="done", wall_s=1.0, machine=machine.digest)
    store.finish(STUDY, trial(0, replace(measured(), artifacts=(trace,), launched=launched)))
    outcome = replace(measured(), artifacts=(again,))
    store.repeat(STUDY, Repeat(series=1, round=0, ordinal=0, outcome=outcome))

    cited = {each.digest: each for each in store.citations.all()}

    assert {digest: each.name for digest, each in cited.items()} == {
        trace.digest: "trace",
        again.digest: "again",
        said: "exchange.json",
        machine.digest: "machine.json",
    }
    assert {(each.study_id, each.ordinal, each.ended_at) for each in cited.values()} == {
        (STUDY, 0, END)
    }
    assert store.citations.uncited(set(cited)) == set()


def test_what_nobody_names_is_uncited(store):
    files = [kept(store, str(number)) for number in range(3)]
    store.finish(STUDY, trial(0, replace(measured(), artifacts=(files[1],))))
    assert store.citations.uncited({file.digest for file in files}) == {
        files[0].digest,
        files[2].digest,
    }
    assert store.citations.uncited(set()) == set()


def test_a_digest_across_two_pieces_of_a_journal_is_found(store, monkeypatch):
    files = [kept(store, str(number)) for number in range(2)]
    monkeypatch.setattr("records.store.artifacts._PIECE_BYTES", 50)
    (store.root / "journal" / "other.jsonl").write_text(f"{'x' * 30}{files[0].digest}\n")
    assert store.citations.uncited({file.digest for file in files}) == {files[1].digest}


def test_a_removal_is_told_of_the_study_that_it_was_recorded_for(store):
    first, other = (kept(store, name) for name in ("first", "other"))
    store.create("20260102-000000-bbbb", study(), "1")
    store.remove_files(STUDY, [first.digest], "too old")
    removed_at = store.remove_files(STUDY, [first.digest], "too many")

    told = store.citations.removal(STUDY, first.digest)

    assert (told.rule, told.removed_at) == ("too many", removed_at)
    assert store.citations.removal(STUDY, other.digest) is None
    assert store.citations.removal("20260102-000000-bbbb", first.digest) is None
    assert list(store.citations.removals()) == [told]


def test_a_damaged_record_is_one_line_and_never_taken_for_one_without_files(store):
    store.finish(STUDY, trial(0, replace(measured(), artifacts=(kept(store, "trace"),))))
    with closing(sqlite3.connect(store.root / "cclsearch.db")) as database, database:
        database.execute("update trials set trial = '{'")
    with pytest.raises(StoreError, match="cannot read the store") as refused:
        list(store.citations.all())
    assert "\n" not in str(refused.value)
