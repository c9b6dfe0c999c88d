"""Numbers, units and messages as people and the model read them."""

from dataclasses import replace

import pytest

from records.workload import Message, Workload
from search.views.format import (
    absence_lines,
    format_bandwidth,
    format_decimal_bytes,
    format_duration,
    format_percent,
    format_time_change,
    message_words,
    work_words,
)
from search.views.trial import TrialRecord, trial_document, trial_row
from tests.support import records as testing

REDUCED = Message(collective="all_reduce", size_bytes=4 << 20, count=12)
MIX = Workload(
    name="mix",
    phase="communication",
    global_batch=1,
    sequence_length=1,
    messages=(REDUCED, Message(collective="barrier")),
)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (REDUCED, "12 × all_reduce sum float32 4 MiB"),
        (Message(collective="barrier"), "1 × barrier"),
        (
            Message(collective="reduce_scatter", size_bytes=40, dtype="int64", reduce_op="max"),
            "1 × reduce_scatter max int64 40 B",
        ),
        (Message(collective="all_gather", size_bytes=2048), "1 × all_gather float32 2 KiB"),
    ],
)
def test_a_message_is_told_with_its_count(message, words):
    assert message_words(message) == words


def test_the_work_of_a_step_is_its_messages_or_its_tokens():
    assert work_words(MIX) == "exchanges 12 × all_reduce sum float32 4 MiB, 1 × barrier"
    assert work_words(testing.WORKLOAD) == "processes 2048 tokens"


def test_a_trial_is_shown_with_what_one_call_of_each_message_took():
    outcome = testing.measured()
    timed = replace(outcome.measurement, message_times_s=(0.00125, 3e-5))
    trial = testing.trial(0, replace(outcome, measurement=timed), {"in_flight": 1})
    study = replace(testing.study(), workload=MIX)

    record = TrialRecord(study_id="a", study=study, trial=trial, reached=None)
    samples = next(each for each in trial_document(record).sections if each.name == "samples")

    row = trial_row(trial, None, "in_flight=1", metrics=frozenset(), message_chars=100)
    assert row.endswith("; one call of each message takes 0.00125, 3e-05 s")
    assert samples.blocks[0].lines == (
        ("each step", "12 × all_reduce sum float32 4 MiB: 0.00125 s a call"),
        ("each step", "1 × barrier: 3e-05 s a call"),
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (format_duration(None), "-"),
        (format_duration(0.0), "0"),
        (format_duration(1.5), "1.5 s"),
        (format_duration(0.0123456), "12.35 ms"),
        (format_duration(2.5e-6), "2.5 us"),
        (format_duration(4e-9), "0.004 us"),
        (format_time_change(-0.5), "-500 ms"),
        (format_time_change(0.5), "+500 ms"),
        (format_decimal_bytes(None), "-"),
        (format_decimal_bytes(999), "999 B"),
        (format_decimal_bytes(2_101_248), "2.101 MB"),
        (format_percent(0.1234), "12.3 %"),
        (format_percent(None), "-"),
        (format_bandwidth(168.8e9), "168.8 GB/s"),
    ],
)
def test_a_quantity_has_its_unit(words, expected):
    assert words == expected


def test_metrics_that_are_absent_for_one_reason_share_a_line():
    absent = {"a": "no card", "b": "no step", "c": "no card"}

    assert absence_lines(absent) == ["no a, c: no card", "no b: no step"]
