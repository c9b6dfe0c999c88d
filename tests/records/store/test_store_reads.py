"""What is asked of SQL alone is what reading the whole history would have told."""

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.errors import StudyError
from records.store.rows import StudyCounts
from records.store.store import Store
from records.study import MEASURE
from records.trial import Failed, FailureKind, Repeat, Score, Stage
from tests.support.records import failed, measured, study, trial

COST = st.sampled_from([0.25, 0.5, 1.0, -2.0])
FAILED = st.builds(failed, kind=st.sampled_from(FailureKind), stage=st.sampled_from(Stage))


@st.composite
def trials(draw):
    found = []
    for ordinal in draw(st.lists(st.integers(0, 30), unique=True, max_size=12)):
        if draw(st.booleans()):
            one = trial(ordinal, draw(FAILED))
        else:
            broken = draw(st.sampled_from([(), ("too large",)]))
            score = Score(cost=draw(COST), value=1.0, unit="s", broken=broken)
            one = replace(trial(ordinal, 0.5), score=score)
        found.append(replace(one, attempts=draw(st.integers(0, 3))))
    return found


@given(found=trials(), count=st.integers(1, 5))
@settings(deadline=None, max_examples=20)
def test_sql_tells_what_the_history_tells(found, count, tmp_path_factory):
    with closing(Store(tmp_path_factory.mktemp("store"))) as store:
        repeat = Repeat(series=1, round=0, ordinal=0, outcome=measured())
        store.add_study("one", study(), "1", found, [repeat])
        store.add_study("two", study(), "1", [trial(0, 0.125)])
        history = store.history("one")
        assert store.best("one") == history.best
        assert store.latest("one", count) == history.trials[-count:]
        assert [store.trial("one", each.ordinal) for each in history] == list(history)
        assert store.trial("one", 31) is None
        outcomes = [each.outcome for each in history]
        kinds = Counter(one.kind for one in outcomes if isinstance(one, Failed))
        assert store.failures("one") == kinds
        assert store.counts("one") == StudyCounts(
            trials=len(history),
            measured=len(history.measured),
            launches=1 + sum(each.attempts for each in history if each.reached_launch),
            repeats=1,
        )
        assert store.counts("none") == StudyCounts()
        assert (store.best("none"), store.latest("none", 3), store.failures("none")) == (
            None,
            (),
            {},
        )


def test_studies_come_in_pages_newest_first_and_launches_that_check_one_are_no_search(tmp_path):
    with closing(Store(tmp_path)) as store:
        for number in range(5):
            store.create(f"s{number}", study(), "1")
        names = [row.id for row in store.studies()]
        assert store.study_count() == 5
        assert [row.id for row in store.studies(limit=2)] == names[:2]
        assert [row.id for row in store.studies(limit=2, offset=4)] == names[4:]
        assert store.find("").id == names[0]
        store.create("s9", replace(study(), strategy=MEASURE), "1")
        assert (store.find("").id, store.find("s9").id) == (names[0], "s9")


@pytest.mark.parametrize("prefix", ["a", "a.", "b-", "_"])
def test_beginnings_are_compared_letter_by_letter(tmp_path, prefix):
    with closing(Store(tmp_path)) as store:
        for name in ("A", "a.z", "b-b_", "b", "_a"):
            store.create(name, study(), "1")
        assert store.find(prefix).id.startswith(prefix)
        with pytest.raises(StudyError, match="no study"):
            store.find(f"{prefix}!")


def test_who_may_keep_little_reads_a_large_history_again(tmp_path):
    with closing(Store(tmp_path)) as store:
        for name, count in (("small", 3), ("large", 4)):
            store.add_study(name, study(), "1", [trial(n, 0.5) for n in range(count)])
    with closing(Store(tmp_path, most_parsed=3)) as reader:
        small = reader.history("small")
        assert reader.history("small") is small
        large = reader.history("large")
        assert reader.history("large") is not large
        assert reader.history("large") == large


def test_a_history_that_was_read_is_read_on_and_not_again(tmp_path):
    with closing(Store(tmp_path)) as store:
        store.create("one", study(), "1")
        store.create("two", study(), "1")
        store.finish("one", trial(3, 0.5))
        first = store.history("one")
        assert store.history("one") is first
        store.finish("one", trial(1, 0.5))
        second = store.history("one")
        assert [each.ordinal for each in second] == [1, 3]
        assert second.trials[1] is first.trials[0]
        assert len(store.history("two")) == 0
        assert store.history("one") == second


@pytest.mark.parametrize(
    "question",
    [
        "select ordinal from trials where study_id = 'one' and score_cost is not null"
        " and coalesce(score_broken, '[]') = '[]' order by score_cost, ordinal limit 1",
        "select * from studies order by created_at desc, id desc limit 20",
        "select failure_kind, count(*) from trials where study_id = 'one'"
        " and failure_kind is not null group by failure_kind",
        "select * from trials where study_id = 'one' order by ordinal desc limit 100",
    ],
)
def test_what_a_person_waits_for_is_found_by_an_index_and_not_sorted(tmp_path, question):
    with closing(Store(tmp_path)), closing(sqlite3.connect(tmp_path / "cclsearch.db")) as db:
        plan = [row[3] for row in db.execute(f"explain query plan {question}")]
    assert all("INDEX" in step for step in plan)
