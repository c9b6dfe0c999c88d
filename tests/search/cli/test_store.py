"""`doctor --rebuild` on stores that are damaged or gone."""

import json
from contextlib import closing

import pytest

from records.store.store import Store
from tests.support.records import study, trial


@pytest.fixture
def root(tmp_path):
    """A store with a study of six trials."""
    with closing(Store(tmp_path)) as store:
        store.add_study("one", study(), "1", (trial(n, 0.5 + n, {"n": n}) for n in range(6)))
    return tmp_path


def test_a_rebuild_prints_each_study_and_keeps_the_old_database(root, cclsearch):
    (root / "cclsearch.db").write_bytes(b"not a database, but text\n" * 100)

    rebuilt = cclsearch("doctor", "--rebuild", "--store", root)

    assert rebuilt.code == 0
    assert rebuilt.out.splitlines() == [
        "study one: 8 entries, 6 trials",
        f"kept: the old database is {root / 'cclsearch.db.old'}",
        f"rebuilt: 1 studies, 6 trials in {root}",
        f"next: cclsearch list --store {root}",
    ]
    assert "one" in cclsearch("list", "--store", root).out


def test_a_rebuild_tells_every_line_that_it_could_not_read(root, cclsearch):
    journal = root / "journal" / "one.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:5], b"noise\n", *lines[6:]]))
    (root / "cclsearch.db").unlink()

    shown = cclsearch("doctor", "--rebuild", "--store", root).out
    (told,) = json.loads(cclsearch("doctor", "--rebuild", "--json", "--store", root).out)["studies"]

    assert "  not read: line 6: its checksum does not fit\n" in shown
    assert (told["unread"], told["trials"]) == (["line 6: its checksum does not fit"], 5)


def test_where_nothing_is_on_record_a_rebuild_is_one_line(tmp_path, cclsearch):
    ended = cclsearch("doctor", "--rebuild", "--store", tmp_path / "none")

    assert (ended.code, ended.err.count("\n")) == (4, 1)
    assert "no journals in" in ended.err


def test_a_store_without_its_database_is_still_a_store(root, cclsearch):
    (root / "cclsearch.db").unlink()

    assert "one" in cclsearch("list", "--store", root).out
