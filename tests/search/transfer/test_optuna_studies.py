"""Studies of Optuna: every state of a trial, from every kind of storage, which stays as it is."""

import hashlib
import sqlite3
import sys
from contextlib import closing

import optuna
import pytest

from records.errors import EnvironmentFault, StudyError
from records.trial import Failed, FailureKind
from search.transfer.foreign_studies import BadRows
from search.transfer.importers import studies_of

optuna.logging.set_verbosity(optuna.logging.CRITICAL)
KINDS = {
    "tp": optuna.distributions.IntDistribution(1, 8),
    "schedule": optuna.distributions.CategoricalDistribution(["a", None]),
}
UNIT = optuna.distributions.FloatDistribution(0, 1)


def ended(state, tp, **changes):
    """A trial of the study `one` as Optuna keeps it."""
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        params={"tp": tp, "schedule": None},
        distributions=KINDS,
        user_attrs={"gpus": tp},
        intermediate_values={3: 0.5},
        **changes,
    )


def pair(x, y):
    return optuna.trial.create_trial(params={"x": x}, distributions={"x": UNIT}, values=[x, y])


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database with a study of one objective, one of two, and an empty one."""
    path = tmp_path_factory.mktemp("optuna") / "study.db"
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    one = optuna.create_study(storage=storage, study_name="one", direction="maximize")
    one.add_trials([ended("COMPLETE", 4, value=4.0), ended("PRUNED", 2), ended("FAIL", 8)])
    one.ask()  # a trial that has not ended
    directions = ["minimize", "maximize"]
    two = optuna.create_study(storage=storage, study_name="two", directions=directions)
    two.add_trials([pair(0.25, 0.5), pair(0.5, 0.75)])
    optuna.create_study(storage=storage, study_name="empty")
    storage.engine.dispose()
    return path


def read(source):
    return list(studies_of(str(source), None, BadRows()))


def test_every_state_of_a_trial_becomes_an_outcome(database):
    one, two = read(database)  # without the empty one
    ends = [t.outcome.kind if isinstance(t.outcome, Failed) else t.score.value for t in one.trials]
    assert ends == [4.0, FailureKind.METRIC_ERROR, FailureKind.CRASH]
    assert one.trials[1].outcome.message == (
        "stopped early by the pruner; its last value, at step 3, was 0.5"
    )
    assert dict(one.trials[0].config.values) == {"tp": 4, "schedule": "None"}
    assert one.trials[0].outcome.metric("published_gpus") == 4
    assert one.trials[0].ended_at
    assert one.study.objective.direction == "maximize"
    assert any("1 trials had not ended" in note for note in one.study.origin.notes)
    further = [(o.expression, o.direction) for o in two.study.more_objectives]
    assert further == [("published_score_2", "maximize")]
    assert all(t.outcome.metric("published_score_2") is not None for t in two.trials)


def test_intermediate_values_and_attributes_are_kept_as_a_file(database):
    for one in studies_of(str(database), None, BadRows()):
        kept = {hashlib.sha256(p.read_bytes()).hexdigest(): p.read_text() for p in one.files}
        cited = [a.digest for trial in one.trials for a in trial.outcome.artifacts]
        assert set(cited) == kept.keys()
        if one.study.name == "one":
            assert len(cited) == 3
            assert '"intermediate_values": {"3": 0.5}' in kept[cited[0]]


def test_a_storage_stays_as_it_is_and_a_url_names_it_too(database):
    before = database.read_bytes()
    assert [one.id for one in read(database)] == [one.id for one in read(f"sqlite:///{database}")]
    assert database.read_bytes() == before
    assert [p.name for p in database.parent.iterdir()] == [database.name]


def test_a_journal_is_read_as_well(tmp_path):
    path = tmp_path / "journal.log"
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    study = optuna.create_study(storage=optuna.storages.JournalStorage(backend))
    study.add_trials([ended("COMPLETE", 4, value=4.0), ended("FAIL", 8)])
    (one,) = read(path)
    assert [t.outcome.status for t in one.trials] == ["measured", "failed"]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_database_that_runs_something_when_it_is_read_is_refused(database, tmp_path):
    path = tmp_path / "bomb.db"
    path.write_bytes(database.read_bytes())
    with closing(sqlite3.connect(path)) as db:
        endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select x from n"
        db.execute(f"create view slow as {endless}")
        db.commit()
    with pytest.raises(StudyError, match=r"bomb\.db: has the view or trigger 'slow'"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("no.db", b"SQLite format 3\0" + b"x" * 5000),
        ("cut.db", None),
        ("no.log", b'{"op_code": 99}\n'),
        ("odd.log", b'{"op_code": 0}\n'),
        ("half.log", b'{"op_code": 0, "worker_id": "w", "study_name": "s", "directions": [1]}\n{'),
    ],
)
def test_a_broken_storage_is_refused_in_one_line(database, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(database.read_bytes()[:20_000] if content is None else content)
    with pytest.raises(StudyError) as refused:
        assert read(path) == []
        raise StudyError(f"{name}: nothing")  # a journal may be of an empty study
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


def test_without_optuna_one_line_says_what_to_install(database, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'cclsearch\[optuna\]'"):
        read(database)
