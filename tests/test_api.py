"""The Python face: `import cclsearch`."""

import subprocess
import sys

import pandas as pd
import pytest

import cclsearch
from records.errors import StoreError, StudyError
from records.store.rows import PendingTrial
from records.store.store import Store
from records.trial import FailureKind, Stage
from tests.support import records as testing

HEAVY = "{'torch', 'pandas', 'numpy', 'scipy', 'anthropic', 'sqlite_utils', 'pydantic', 'typer'}"
OWN = ["ordinal", "author", "status", "score", "launches", "unit", "caveats", "failure_kind"]
TIMES = ["message", "started_at", "ended_at", "energy_per_step"]
TRIALS = (
    testing.trial(0, 0.5, {"n": 1, "checkpointing": "full"}, author="seed"),
    testing.trial(1, testing.failed(FailureKind.POLICY_ERROR, Stage.DECIDE, "no")),
    testing.trial(2, 0.25, {"n": 2, "checkpointing": "none"}),
)


@pytest.fixture
def records(tmp_path):
    """A store with two studies: an older one without trials, and one with three."""
    store = Store(tmp_path)
    store.create("20260101-000000-aaaa", testing.study(), "test")
    store.create("20260102-000000-bbbb", testing.study(), "test")
    for trial in TRIALS:
        intent = PendingTrial(
            ordinal=trial.ordinal, policy=trial.policy, started_at=trial.started_at, exchange=None
        )
        store.begin("20260102-000000-bbbb", intent, None)
        store.finish("20260102-000000-bbbb", trial)
    store.close()
    return tmp_path


def test_importing_loads_nothing_heavy():
    program = f"import sys, cclsearch\nprint(sorted({HEAVY} & sys.modules.keys()))"

    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert told.stdout == "[]\n"


def test_the_public_names_are_these():
    assert cclsearch.__all__ == [
        *(
            "Client",
            "Timer",
            "Timing",
            "Trace",
        ),
        *("in_trial", "lightning_callback", "log"),
        *("print_timings", "steps", "studies", "study", "trace", "trainer_callback", "trials"),
    ]
    assert all(callable(getattr(cclsearch, name)) for name in cclsearch.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trails'"):
        _ = cclsearch.trails


def test_a_study_is_a_row(records):
    frame = cclsearch.studies(records)

    columns = ["study", "name", "objective", "strategy", "status", "created_at"]
    assert list(frame.columns) == columns
    assert set(frame["study"]) == {"20260101-000000-aaaa", "20260102-000000-bbbb"}
    assert isinstance(frame["created_at"].dtype, pd.DatetimeTZDtype)


def test_a_trial_is_a_row_with_its_settings_and_metrics(records):
    frame = cclsearch.trials("20260102", store=records)

    settings = ["config.checkpointing", "config.n"]
    assert list(frame.columns) == [*OWN, *TIMES, *settings, "metric.step_time"]
    assert list(frame["ordinal"]) == [0, 1, 2]
    assert frame["score"].min() == 0.25
    assert isinstance(frame["ended_at"].dtype, pd.DatetimeTZDtype)


def test_what_a_failed_trial_lacks_is_missing(records):
    failed = cclsearch.trials("20260102", str(records)).iloc[1]

    assert failed["failure_kind"] == "policy_error"
    assert failed[["score", "unit", "config.n", "metric.step_time"]].isna().all()


def test_a_study_without_trials_has_the_columns_of_every_study(records):
    frame = cclsearch.trials("20260101", records)

    assert list(frame.columns) == [*OWN, *TIMES]
    assert frame.empty


def test_records_are_found_where_the_environment_says(records, monkeypatch):
    monkeypatch.setenv("CCLSEARCH_STORE", str(records))

    assert len(cclsearch.studies()) == 2


def test_no_records_are_an_error_and_no_folder(tmp_path):
    with pytest.raises(StoreError, match="no records in"):
        cclsearch.trials(store=tmp_path / "nowhere")

    assert not (tmp_path / "nowhere").exists()


def test_an_unknown_study_is_an_error(records):
    with pytest.raises(StudyError, match="no study '2027'"):
        cclsearch.trials("2027", records)
