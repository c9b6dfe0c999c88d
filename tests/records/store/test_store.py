"""Whatever is stored comes back equal, through a second opening of the store."""

import re
import stat
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.errors import StoreError, StudyError
from records.store.store import Store
from records.study import Budget, Constraint, Dimension, Link, Range, SearchSpace
from records.trial import (
    Artifact,
    FailureKind,
    Measured,
    Policy,
    Prediction,
    Repeat,
    Score,
    Stage,
    Trial,
)
from tests.support.records import END, EXCHANGE, START, failed, intent, measured, study, trial

TEXT = st.text(max_size=40)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
KNOBS = st.dictionaries(
    TEXT, st.one_of(st.booleans(), st.integers(-(2**63), 2**63), NUMBER, TEXT), max_size=4
)
PREDICTION = st.builds(Prediction, speedup=st.floats(0.01, 100.0), over=st.integers(0, 10**6))
POLICY = st.builds(
    Policy,
    source=TEXT,
    author=TEXT,
    parent=st.none() | TEXT,
    rationale=TEXT,
    prediction=st.none() | PREDICTION,
)
FILES = st.lists(
    st.builds(Artifact, name=TEXT, digest=TEXT, size_bytes=st.integers(0, 2**62)),
    unique_by=lambda artifact: artifact.name,
    max_size=3,
).map(tuple)
FAILED = st.builds(
    failed, kind=st.sampled_from(FailureKind), stage=st.sampled_from(Stage), message=TEXT
)
MEASURED = st.builds(replace, st.builds(measured, NUMBER), artifacts=FILES)


@st.composite
def trials(draw):
    outcome = draw(FAILED | MEASURED)
    cost = draw(NUMBER) + 0.0  # SQLite keeps no sign of zero
    return Trial(
        ordinal=0,
        policy=draw(POLICY),
        config=draw(st.none() | KNOBS.map(lambda knobs: trial(0, 1.0, knobs).config)),
        outcome=outcome,
        score=Score(cost=cost, value=cost / 2 + 0.0, unit=draw(TEXT))
        if type(outcome) is Measured
        else None,
        started_at=START,
        ended_at=END,
        attempts=draw(st.integers(0, 3)),
        exchange=draw(st.none() | TEXT),
    )


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path)) as opened:
        opened.create("one", study(), "1")
        yield opened


def reopened(store):
    return closing(Store(store.root))


@given(one=trials())
@settings(deadline=None, max_examples=40)
def test_a_trial_comes_back_as_it_was(one, tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    with closing(Store(root)) as store:
        store.create("one", study(), "1")
        store.finish("one", one)
    with closing(Store(root)) as store:
        (back,) = store.history("one")
    assert back == one
    assert repr(back) == repr(one)


def test_trials_come_back_oldest_first_and_apart_by_study(store):
    store.create("two", study(), "1")
    for ordinal in (10, 2, 0):
        store.finish("one", trial(ordinal, 0.5))
    store.finish("two", trial(0, failed()))
    assert [t.ordinal for t in store.history("one")] == [0, 2, 10]
    assert len(store.history("two")) == 1
    assert len(store.history("three")) == 0


def test_a_study_comes_back_as_it_was(store):
    asked = replace(
        study(
            Dimension(name="lr", range=Range(low=0.25, high=1, step=0.25), when="on"),
            Dimension(name="on", choices=(True, False), description="on or off"),
            Dimension(name="mode", choices=("1", "0x10", "é")),
        ),
        environment=replace(
            study().environment,
            scale_up=Link(bandwidth_bytes_per_s=4.5e11, latency_s=1e-6),
            software={"torch": "2.0"},
        ),
    )
    asked = replace(
        asked,
        space=SearchSpace(
            dimensions=asked.space.dimensions,
            constraints=(Constraint(name="c", expression="lr < 1 or not on", reason="why"),),
        ),
    )
    store.create("two", asked, "1.2")
    with reopened(store) as other:
        row = other.find("two")
    assert repr(row.study) == repr(asked)
    assert (row.status, row.strategy, row.summary) == ("running", "auto", None)


def test_an_exchange_is_kept_whole_and_addressed_by_the_intent(store):
    paid = replace(EXCHANGE, request='{"text": "\N{SNOWMAN} \\ud83d"}', reply="x" * 100_000)
    begun = store.begin("one", intent(0), paid)
    assert store.pending("one") == (begun,)
    with reopened(store) as other:
        assert other.exchange(begun.exchange) == paid
    store.artifacts.path(begun.exchange).unlink()
    with pytest.raises(StoreError, match=f"artifact {begun.exchange} is missing"):
        store.exchange(begun.exchange)


def test_confirmations_come_back_by_series_and_round_in_the_order_of_launches(store):
    launches = [
        Repeat(series=5, round=round_number, ordinal=ordinal, outcome=outcome)
        for round_number, ordinal, outcome in (
            (0, 3, measured()),
            (0, 1, failed()),
            (1, 1, measured(0.25)),
            (1, 3, failed()),
        )
    ]
    for launch in launches:
        store.repeat("one", launch)
    with reopened(store) as other:
        assert other.repeats("one") == tuple(launches)
        assert other.repeats("two") == ()


def test_a_study_is_found_by_the_beginning_of_its_id_or_the_whole_of_it(store, tmp_path):
    for name in ("20260101-a", "20260102-a", "one-more"):
        store.create(name, study(), "1")
    assert store.find("20260102").id == "20260102-a"
    assert store.find("one").id == "one"
    assert store.find("").id == store.studies()[0].id
    with pytest.raises(StudyError, match="fits several studies: 2026010"):
        store.find("2026")
    for prefix in ("three", "%", "_", "o%", "one'; drop table trials; --"):
        with pytest.raises(StudyError, match="no study "):
            store.find(prefix)
    with (
        closing(Store(tmp_path / "empty")) as empty,
        pytest.raises(StudyError, match="next: cclse"),
    ):
        empty.find("")


def test_status_summary_and_study_are_what_was_recorded_last(store):
    longer = replace(study(), budget=Budget(trials=99))
    store.update("one", status="interrupted")
    store.update("one", status="finished", summary='{"winner": 3}')
    store.update("one", status="running")
    store.replace_study("one", longer)
    row = store.find("one")
    assert (row.status, row.summary, row.study) == ("running", '{"winner": 3}', longer)


def test_the_same_trial_is_not_recorded_twice_which_is_one_line_that_names_the_store(store):
    store.finish("one", trial(0, 0.5))
    with pytest.raises(StoreError, match="UNIQUE") as refused:
        store.finish("one", trial(0, 0.25))
    assert re.fullmatch(f"cannot write to the store {store.root}: .*", str(refused.value))
    assert [t.score.cost for t in store.history("one")] == [0.5]


def test_a_trial_that_cannot_be_stored_leaves_nothing_behind(store):
    store.begin("one", intent(0), None)
    twice = Artifact(name="log", digest="d", size_bytes=1)
    with pytest.raises(StoreError):
        store.finish("one", trial(0, replace(measured(), artifacts=(twice, twice))))
    assert len(store.history("one")) == 0
    assert store.pending("one") == (intent(0),)
    store.finish("one", trial(0, 0.5))
    assert store.pending("one") == ()


@pytest.mark.parametrize("is_there", [False, True])
def test_no_other_user_reads_the_records(tmp_path, is_there):
    root = tmp_path / "store"
    if is_there:
        (root / "journal").mkdir(parents=True, mode=0o755)
    store = Store(root)
    store.create("one", study(), "test")
    store.artifacts.keep_text("content", "rank0.log")
    store.close()
    open_to_others = {
        path.name
        for path in [root, *root.iterdir(), *(root / "journal").iterdir()]
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    }
    assert open_to_others == ({"store"} if is_there else set())
