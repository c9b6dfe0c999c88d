"""Sides of every kind to compare: stores, benchmark rows, and results of nvbench."""

import csv
import io
import json
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Measure
from tests.support import records as testing

STUDY, OTHER = "20260101-000000-aaaa", "20250101-000000-bbbb"
STEADY = (1.0, 1.01, 0.99, 1.0, 1.005)
UNEVEN = (1.0, 1.04, 0.97, 1.03, 0.98)
"""What every launch takes, over what the first one takes."""


def measuring(margin=0.02, alpha=0.05):
    """A study that re-measures in four to six rounds."""
    measure = Measure(margin=margin, alpha=alpha, confirm_rounds=4, max_confirm_rounds=6)
    return replace(testing.study(), measure=measure)


@pytest.fixture
def store(tmp_path):
    """Makes a store of these studies by their ids, each with its trials and repeats."""

    def make(**studies):
        with closing(Store(tmp_path / "store")) as records:
            for study_id, (study, trials, *repeats) in studies.items():
                records.add_study(study_id, study, "test", trials, *repeats)
        return tmp_path / "store"

    return make


POINT = {
    "Collective": "all_reduce",
    "ReduceOp": "sum",
    "DType": "float32",
    "SendMsgSize(B)": 1024,
    "Ranks": 8,
    "DispatchMode": "sync",
    "SyncInterval": 0,
}


def row(latency, **columns):
    """A row of a benchmark."""
    return POINT | {"LatAvg(us)": latency} | columns


def rounds(scale, column="Block", factors=STEADY, **columns):
    """Five rounds with a latency of 10 us times a scale."""
    return [
        row(10 * scale * factor, **{column: number}, **columns)
        for number, factor in enumerate(factors)
    ]


def csv_text(rows):
    """Rows as a CSV file."""
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(name for each in rows for name in each))
    table = csv.DictWriter(text, columns, restval="n/a")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


@pytest.fixture
def sides(tmp_path):
    """Writes two sides, rows as CSV and texts as JSON; gives their files."""

    def write(a, b):
        files = []
        for name, side in (("a", a), ("b", b)):
            is_json = isinstance(side, str)
            files.append(tmp_path / f"{name}.{'json' if is_json else 'csv'}")
            files[-1].write_text(side if is_json else csv_text(side), newline="")
        return files

    return write


@pytest.fixture
def compared(cclsearch, sides):
    """Compares two sides; gives what is printed for programs."""

    def compare(a, b, *flags):
        ended = cclsearch("compare", *sides(a, b), *flags, "--json")
        assert (ended.code, ended.err) == (0, "")
        return json.loads(ended.out)

    return compare
