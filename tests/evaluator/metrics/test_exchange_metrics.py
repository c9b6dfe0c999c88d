"""Bus bandwidth, latency and the times of messages, from samples that are known."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.communication import bus_bandwidth, latency
from evaluator.metrics.registry import measure_all
from evaluator.samples import message_times_s, parts_fault
from records.workload import Message, Workload
from tests.support.records import study
from tests.support.traces import named_cases

MIB = 1 << 20
MESSAGE = Message(collective="all_reduce", size_bytes=MIB)
RANKS = 8


def workload(*messages):
    return Workload(
        name="mix",
        phase="communication",
        global_batch=1,
        sequence_length=1,
        messages=messages or (MESSAGE,),
    )


def evidence(*messages, step_s=100e-6, ranks=RANKS):
    return Evidence(
        step_times_s=(step_s, step_s / 2, step_s * 2),
        tokens_per_step=0,
        rank_count=ranks,
        workload=workload(*messages),
    )


def message(collective, **changed):
    return Message(collective=collective, size_bytes=MIB, **changed)


@pytest.mark.parametrize(
    ("collective", "gb_per_s"),
    [
        ("all_gather", 73.400),
        ("send_recv", 2 * 10.486),  # there and back in this time
    ],
)
def test_one_call_of_a_mebibyte_in_100_us_on_eight_ranks(collective, gb_per_s):
    assert bus_bandwidth.measure(evidence(message(collective))) == pytest.approx(gb_per_s, rel=1e-4)


@given(
    st.lists(st.builds(message, st.sampled_from(["all_reduce", "all_gather"])), min_size=1),
    st.integers(1, 50),
)
def test_the_messages_of_a_step_add_up(messages, count):
    alone = [bus_bandwidth.measure(evidence(each)) for each in messages]
    repeated = [replace(each, count=count) for each in messages]

    assert bus_bandwidth.measure(evidence(*repeated)) == pytest.approx(sum(alone) * count)


def test_bytes_that_make_no_whole_element_are_not_sent():
    asked = evidence(Message(collective="broadcast", size_bytes=11, dtype="float64"), step_s=1.0)
    assert bus_bandwidth.measure(asked) == pytest.approx(8e-9)


def test_latency_is_that_of_a_call_that_was_asked_for():
    asked = evidence(message("all_reduce", count=3), Message(collective="barrier"))

    assert latency.measure(asked) == pytest.approx(25e-6)


@named_cases(
    ("asked", "reason"),
    {
        "barrier": (evidence(Message(collective="barrier")), "no link is used"),
        "one rank": (evidence(MESSAGE, ranks=1), "no link is used"),
        "untimed": (replace(evidence(MESSAGE), step_times_s=()), "no step was timed"),
        "training": (
            replace(evidence(MESSAGE), workload=study().workload),
            "the workload is not one of messages alone",
        ),
    },
)
def test_there_is_no_bandwidth_where_nothing_was_sent(asked, reason):
    assert bus_bandwidth.measure(asked) == Absent(reason)


def test_what_counts_tokens_has_no_value_where_there_are_none():
    absent = measure_all(evidence(MESSAGE)).absent

    tokens = {name for name, why in absent.items() if why == "a step processes no tokens"}
    assert tokens == {"tokens_per_s", "tokens_per_s_per_rank", "rank_seconds_per_token"}
    assert absent["mfu"] == absent["achieved_tflops"] == "the workload only communicates"


def test_messages_are_timed_by_the_slowest_rank_and_the_call():
    mix = (message("all_reduce", count=2), message("broadcast"))
    fast = [(0, 100, 150), (200, 300, 390), (400, 500, 560)]
    slow = [(5, 405, 415), (205, 405, 425), (405, 505, 535)]

    assert message_times_s([fast, slow], mix) == pytest.approx((100e-9, 60e-9))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(0, 1)], False),
        ([(0, 1, 2), (2, 3, 4)], False),
        ([(0, 1, 2, 3)], True),
        ([(0, 1), (1, 2, 3)], True),
    ],
)
def test_steps_have_a_part_for_each_message_or_none(steps, expected):
    mix = (MESSAGE, MESSAGE)

    assert (parts_fault([steps, steps[:1]], mix) is not None) is expected
    assert (message_times_s([steps], mix) == ()) is (len(steps[0]) == 2 or expected)
