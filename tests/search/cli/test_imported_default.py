"""A study that was imported is someone else's: no command takes it unless it is named."""

from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Origin
from tests.support import records as testing

OWN, FOREIGN = "20260101-000000-mine", "20260401-000000-them"


@pytest.fixture
def store(tmp_path):
    """A study of ours, and a newer one that was imported and is better."""
    root = tmp_path / "store"
    own = replace(testing.study(), strategy="offline")
    foreign = replace(own, name="theirs", origin=Origin(kind="optuna", source="theirs.db"))
    with closing(Store(root)) as records:
        records.add_study(OWN, own, "test", testing.history(0.5, 0.25).trials)
        records.add_study(FOREIGN, foreign, "test", testing.history(0.1).trials)
    return root


@pytest.mark.parametrize(
    "command",
    [("show",), ("best",), ("compare", "trial:0", "trial:1"), ("trial", "show", "0")],
    ids=lambda command: command[0],
)
def test_the_newest_study_is_never_an_imported_one(cclsearch, store, command):
    ended = cclsearch(*command, "--store", store)

    assert ended.code == 0
    assert OWN in ended.out + ended.err
    assert FOREIGN not in ended.out + ended.err


def test_best_names_its_study_beside_what_programs_read(cclsearch, store):
    newest, named = (
        cclsearch("best", "--store", store),
        cclsearch("best", FOREIGN, "--store", store),
    )

    assert newest.out == '{\n "n": 1\n}\n'
    assert newest.err.startswith(f"study {OWN}: ")
    assert named.err.startswith(f"study {FOREIGN}: theirs, objective step_time, imported (optuna)")


def test_show_begins_with_its_study(cclsearch, store):
    assert cclsearch("show", "--store", store).out.startswith(f"study {OWN}: ")


def test_where_all_studies_were_imported_one_must_be_named(cclsearch, tmp_path):
    foreign = replace(testing.study(), origin=Origin(kind="optuna", source="theirs.db"))
    with closing(Store(tmp_path / "store")) as records:
        records.add_study(FOREIGN, foreign, "test", testing.history(0.1).trials)

    ended = cclsearch("best", "--store", tmp_path / "store")

    assert (ended.code, ended.out) == (2, "")
    assert "was imported" in ended.err
    assert "cclsearch list" in ended.err
