"""Trials as JSON lines, CSV and Parquet: what is on record, typed, and nothing that runs."""

import csv
import io
import json
import math
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.transfer.tables import write_csv, write_jsonl

GOLDEN = Path(__file__).parent / "golden"


def document(**changes):
    texts = ("study_id", "study_name", "author", "status", "policy_digest", "config_digest")
    absent = ("failure_stage", "failure_kind", "failure_message", "score")
    return {
        **dict.fromkeys((*texts, "started_at", "ended_at"), "x"),
        **dict.fromkeys(absent),
        "caveats": [],
        "metrics": [],
        "config": {},
        "ordinal": 0,
        "attempts": 1,
        **changes,
    }


def rows(*documents):
    out = io.BytesIO()
    write_csv(documents, out)
    return list(csv.DictReader(io.StringIO(out.getvalue().decode(), newline="")))


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_the_format_is_the_documented_one(form, export):
    ended, path = export(form)
    assert (ended.code, ended.err) == (0, "")
    assert path.read_text() == (GOLDEN / f"trials.{form}").read_text()


def test_parquet_has_the_columns_of_the_csv_with_their_types(export):
    table = pyarrow.parquet.read_table(export("parquet")[1])
    headings = (GOLDEN / "trials.csv").read_text().splitlines()[0]
    assert table.column_names == headings.split(",")
    kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert kinds["config.tp"] == kinds["ordinal"] == "int64"
    assert kinds["metric.step_time [s]"] == kinds["score [s]"] == "double"
    assert (kinds["caveats"], kinds["energy_per_step [J]"]) == ("string", "double")
    assert table.column("score [s]").to_pylist() == [0.25, None]


def test_one_trial_can_be_asked_for(export):
    told = export("jsonl", "--trial", "best")[1].read_text().splitlines()
    assert [json.loads(line)["ordinal"] for line in told] == [0]
    ended, path = export("jsonl", "--trial", "7", name="more")
    assert (ended.code, path.exists(), "no trial 7" in ended.err) == (2, False, True)


def test_metrics_only_leaves_files_policies_and_launches_at_home(export):
    text = export("jsonl", "--metrics-only")[1].read_text()
    first = json.loads(text.splitlines()[0])
    assert first["metrics"][0]["value"] == 0.25
    assert first["outcome"]["artifacts"] == [] and first["outcome"]["launched"] is None
    assert all(word not in text for word in ("# tp=2", "try it", "rank0.log", "NCCL_DEBUG"))


@given(st.text(min_size=1).filter(lambda text: text.strip() and "\0" not in text))
def test_no_cell_is_a_formula(text):
    (row,) = rows(document(failure_message=text, config={text: "v"}))
    assert not row["failure_message"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert not any((heading or "x").startswith(("=", "+", "-", "@")) for heading in row)


def test_a_negative_number_stays_a_number():
    unit = {"unit": "s", "better": "lower", "version": 1}
    (row,) = rows(document(metrics=[{"name": "gain", "value": -1.5, **unit}]))
    assert row["metric.gain [s]"] == "-1.5"


def test_a_metric_that_changed_its_unit_has_a_column_for_each():
    told = [{"name": "m", "value": 1.0, "unit": unit} for unit in ("s", "ms")]
    first, second = rows(*(document(metrics=[each]) for each in told))
    assert (first["metric.m [s]"], first["metric.m [ms]"]) == ("1.0", "")
    assert (second["metric.m [s]"], second["metric.m [ms]"]) == ("", "1.0")


def test_no_number_that_is_none_is_written():
    with pytest.raises(ValueError, match="JSON compliant"):
        write_jsonl([document(config={"x": math.nan})], io.BytesIO())


def test_what_is_there_stays_without_force(export, tmp_path):
    (tmp_path / "out").write_text("mine")
    refused, path = export("jsonl")
    assert (refused.code, path.read_text(), "--force" in refused.err) == (2, "mine", True)
    assert export("jsonl", "--force")[0].code == 0
    assert path.read_text().startswith("{")
    assert [left.name for left in tmp_path.glob(".out*")] == []
