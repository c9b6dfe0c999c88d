"""Entries of others on a leaderboard: read within bounds, and their defects told."""

import json

import pytest

from records.errors import StudyError
from search.leaderboard.entries import NO_FILES, SENTINEL, read_entries

METADATA = {
    "model_family": "llama-3.1-8b",
    "phase": "training",
    "precision": "bf16",
    "batch_size": 4,
    "seq_len": 512,
    "iteration": 10,
    "hardware_model": "nvidia_a100",
    "total_count": 4,
    "tp": 2,
    "pp": 1,
    "cp": 1,
    "dp_replicate": 1,
    "dp_shard": 2,
}
CARD = """
workload:
  model: {model_family: llama-3.1-8b, phase: training, precision: bf16, iteration: 10}
  data: {batch_size: 4, seq_len: 512}
  hardware: {xpu_spec: {model: nvidia_a100, total_count: 4}}
"""


@pytest.fixture
def entry(tmp_path):
    """Reads one row with these metrics, and other metadata where it is given."""

    def read(metrics, **metadata):
        row = {"name": "it", "metadata": {**METADATA, **metadata}, "metrics": metrics}
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n", encoding="utf-8")
        (submission,) = read_entries([path]).submissions
        return submission

    return read


NOT_FINITE = "what the entry gives is not a finite number"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((-1, -1.0), SENTINEL),
        ((None, ""), "the entry gives none"),
        ((float("nan"), float("inf"), "12", True, 10**400), NOT_FINITE),
        ((-3,), "-3 cannot be: nothing that it measures is below 0"),
    ],
)
def test_a_stand_in_for_no_value_is_none(entry, values, why):
    for value in values:
        reading = entry({"mfu": value}).readings["published_mfu"]
        assert (reading.value, reading.absent) == (None, why)
    no_files = entry({"straggler": 0.0}).readings["published_straggler"]
    assert (no_files.value, no_files.absent) == (None, NO_FILES)


def test_a_bandwidth_has_its_true_unit_and_one_name(entry):
    readings = entry({"bandwidth_utilization_allgather_group_6": 17.8}).readings

    reading = readings["published_bw_allgather"]
    assert (reading.value, reading.unit, reading.better) == (17.8, "GiB/s", "higher")


def test_what_cannot_be_and_what_the_protocol_asks_for_are_marked(entry):
    metrics = {"avg_step_time": 1.0, "total_communication_time": 2.5, "mfu": 140}
    submission = entry(metrics, iteration=2, total_count=16)

    few, devices, *doubts = submission.marks
    assert (few.name, devices.name) == ("few_steps", "other_device_count")
    assert "its plan takes 4 devices, its card says 16" in devices.words
    assert [mark.words for mark in doubts] == [
        "published_total_communication_time: 2.5 s is more than the step of 1 s that it is part of",
        "published_mfu: 140 % is more than all",
    ]


def test_every_row_of_the_public_leaderboard_is_read(cclsearch, recorded_data):
    path = recorded_data / "ccl_leaderboard.jsonl"
    found = read_entries([path])

    assert (len(found.submissions), found.refused) == (102, [])
    values = [
        r.value for s in found.submissions for r in s.readings.values() if r.value is not None
    ]
    assert min(values) >= 0
    wl4 = cclsearch("leaderboard", "--entries", path, "--workload", "WL4", "--json")
    (group,) = json.loads(wl4.out)["groups"]
    assert (len(group["submissions"]), group["ranked_by"]) == (11, "published_avg_step_time")
    assert {each["rank"] for each in group["submissions"]} == {None}  # single numbers
    values = [each["metrics"][group["ranked_by"]]["value"] for each in group["submissions"]]
    assert values == sorted(values)


def test_a_card_with_metrics_in_it_or_beside_it_is_an_entry(tmp_path):
    for name, text in [
        ("within", CARD + "metrics: {mfu: 12.5}\n"),
        ("beside", CARD),
        ("none", CARD),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "workload_card.yaml").write_text(text, encoding="utf-8")
    own = [{"name": "mfu", "value": 0.125, "unit": "fraction", "better": "higher", "version": 1}]
    (tmp_path / "beside" / "record").mkdir()
    (tmp_path / "beside" / "record" / "metrics.json").write_text(json.dumps(own), encoding="utf-8")

    beside, within = read_entries([tmp_path]).submissions

    assert (beside.name, beside.readings["mfu"].unit) == ("beside", "fraction")
    assert (within.name, within.readings["published_mfu"].value) == ("within", 12.5)
    assert beside.work.key == within.work.key


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"metadata": {}, "metrics": 1}',
        "[]",
        "null",
        '{"metadata": ' + '{"a":' * 2000 + "1" + "}" * 2001,
        '{"metrics": {"mfu": ' + "9" * 10_000 + "}}",
        "x" * 2_000_000,
    ],
)
def test_a_row_that_is_none_is_refused_in_a_line_and_the_others_are_read(tmp_path, line):
    good = json.dumps({"name": "good", "metadata": METADATA, "metrics": {"mfu": 1}})
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{line}\n{good}\n", encoding="utf-8")

    found = read_entries([path])

    assert [each.name for each in found.submissions] == ["good"]
    assert len(found.refused) == 1
    assert found.refused[0].startswith(f"{path}:1: ")
    assert len(found.refused[0]) < 400


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"a: &x [*x]\n", b"!!python/object:os.system {}\n", b"[" * 5000],
)
def test_a_hostile_card_is_refused_in_a_line(tmp_path, content):
    path = tmp_path / "card.yaml"
    path.write_bytes(content)

    with pytest.raises(StudyError, match=r"card\.yaml: ") as refused:
        read_entries([path])
    assert "\n" not in str(refused.value)


def test_texts_of_an_entry_cannot_steer_the_terminal(entry):
    submission = entry({"mf\x1b[2Ju": 1.0}, hardware_model="a\x1b[2J\nb" + "c" * 5000)

    assert "\x1b" not in submission.machine + "".join(submission.readings)
    assert len(submission.machine) <= 120
