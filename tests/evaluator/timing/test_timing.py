"""Times of blocks tell a median and how far to trust it, each launch counting once."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.benchmark.utils import common as torch_common

from evaluator.timing.decision import spread
from evaluator.timing.timing import LaunchTimes, Task, Timing, merge, select_unit
from records.codec import from_json, to_json
from records.errors import CodecError

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=40)
ADD = Task(stmt="x.add(1)", setup="x = torch.ones(8)", label="add", sub_label="8")


def timing(*launches, calls=1, task=ADD):
    return Timing(
        task=task,
        number_per_run=calls,
        launches=tuple(
            LaunchTimes(launch=f"launch {number}", raw_times_s=tuple(times))
            for number, times in enumerate(launches)
        ),
    )


def torch_measurement(times, calls=1):
    task = torch_common.TaskSpec(stmt="pass", setup="pass")
    return torch_common.Measurement(number_per_run=calls, raw_times=list(times), task_spec=task)


@given(times=TIMES, calls=st.integers(1, 1000))
def test_statistics_of_one_launch_are_those_of_torch(times, calls):
    ours, theirs = timing(times, calls=calls), torch_measurement(times, calls)

    assert ours.median == pytest.approx(theirs.median, rel=1e-12)
    assert ours.mean == pytest.approx(theirs.mean, rel=1e-12)
    assert ours.iqr == pytest.approx(theirs.iqr, rel=1e-9, abs=1e-12 * max(times))
    assert ours.times == pytest.approx(theirs.times)


@pytest.mark.parametrize("times", [[1.0], [1.0] * 50, [1.0, 2.0, 3.0, 4.0, 5.0]])
def test_without_spread_or_with_five_samples_of_one_launch_there_is_no_interval(times):
    told = timing(times).estimate
    assert (told.low, told.high, told.centre) == (None, None, np.median(times))


def test_the_interval_of_launches_is_that_of_their_medians():
    medians = [1.0, 1.1, 0.9, 1.05]
    told = timing(*([m * t for t in (0.5, 1.0, 1.5)] for m in medians)).estimate
    of_two = timing([1.0], [3.0]).estimate

    over = spread(medians)
    assert (told.low, told.high) == pytest.approx((over.low, over.high))
    assert (told.centre, told.launch_count) == (pytest.approx(1.025), 4)
    assert (of_two.low, of_two.values) == (None, (1.0, 3.0))


@settings(max_examples=40)
@given(times=st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=200, unique=True))
def test_the_interval_within_a_launch_is_that_of_the_order_of_its_samples(times):
    told = timing(times).estimate
    expected = stats.quantile_test(times, p=0.5).confidence_interval(confidence_level=0.95)

    assert (told.low, told.high) == pytest.approx((expected.low, expected.high))
    assert told.low <= told.centre <= told.high
    assert told.launch_count == 1


@pytest.mark.parametrize(
    ("relative_iqr", "words"),
    [
        (0.09, None),
        (0.11, "11.0% of the median: times fluctuate"),
        (0.26, "26.0% of the median: something else keeps this machine busy"),
    ],
)
def test_times_that_vary_come_with_a_warning(relative_iqr, words):
    # Quartiles of three values lie halfway to the middle one.
    told = timing([1 - relative_iqr, 1.0, 1 + relative_iqr])

    assert told.warnings == ((f"the interquartile range is {words}",) if words else ())
    assert torch_measurement(list(told.times)).has_warnings is (words is not None)


def test_launches_stay_what_they_were_and_replicates_of_one_become_one():
    steps = timing([0.5] * 100)
    other = replace(steps, launches=(LaunchTimes(launch="other", raw_times_s=(0.6,) * 100),))
    first, second = timing([10.0, 20.0], calls=10), timing([3.0], calls=1)

    (of_two,), (of_one,) = merge([steps, other]), merge([first, second])

    assert of_two.estimate.launch_count == 2
    assert [len(group.raw_times_s) for group in of_two.launches] == [100, 100]
    assert of_one.number_per_run == 1
    assert of_one.launches == (LaunchTimes(launch="launch 0", raw_times_s=(1.0, 2.0, 3.0)),)


@given(groups=st.lists(TIMES, min_size=1, max_size=4), calls=st.integers(1, 10))
def test_merging_pools_the_times_that_torch_pools(groups, calls):
    (ours,) = merge([timing(times, calls=calls) for times in groups])
    (theirs,) = torch_common.Measurement.merge(
        [torch_measurement(times, calls) for times in groups]
    )

    assert ours.times == pytest.approx(theirs.times)
    assert ours.median == pytest.approx(theirs.median)


def test_merging_keeps_tasks_apart_in_their_order_and_what_was_not_met():
    other = replace(ADD, num_threads=2)
    timings = [timing([1.0], task=other), timing([2.0]), timing([3.0], task=other)]
    unmet = merge([replace(each, unmet_threshold=0.1 * n) for n, each in enumerate(timings)])

    assert [(t.task, t.median) for t in merge(timings)] == [(other, 2.0), (ADD, 2.0)]
    assert [t.unmet_threshold for t in unmet] == [0.2, 0.1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number_per_run": "10"}, "number_per_run: Input should be a valid integer"),
        ({"number_per_run": 0}, "number_per_run is 0; give 1 or more"),
        ({"launches": []}, "launches are none or share a name"),
        ({"launches": [{"launch": "a", "raw_times_s": []}]}, "no raw_times_s"),
        ({"launches": [{"launch": "a", "raw_times_s": [1.0, -1.0]}]}, "raw_times_s holds -1.0"),
        ({"launches": [{"launch": "a", "raw_times_s": [0]}]}, "raw_times_s holds 0"),
        ({"launches": [{"launch": "a", "raw_times_s": ["1"]}]}, "launches.0.raw_times_s.0: "),
        ({"launches": [{"launch": "a", "raw_times_s": [1.0]}] * 2}, "share a name"),
        ({"task": {"stmt": "pass", "num_threads": 0}}, "num_threads is 0; give 1 or more"),
        ({"task": {"stmt": "pass", "threads": 1}}, "task.threads: Unexpected keyword argument"),
        ({"colour": "red"}, "colour: Unexpected keyword argument"),
    ],
)
def test_text_that_is_no_timing_is_refused_naming_the_field(changes, message):
    text = json.dumps({**json.loads(to_json(timing([1.0]))), **changes})

    with pytest.raises(CodecError, match=message):
        from_json(Timing, text)


def test_a_timing_in_words_tells_its_interval_and_its_warnings():
    told = replace(timing([1e-3 * n for n in range(1, 9)], calls=10), unmet_threshold=0.05)

    assert from_json(Timing, to_json(told)) == told
    assert str(told).splitlines() == [
        "8",
        "  median 450 us, 95 % interval within one launch 100 to 800 us, launches 1, blocks 8, "
        "calls per block 10, threads 1",
        "  the interquartile range is 77.8% of the median: something else keeps this machine busy",
        "  time was up before the interquartile range fell below 5.0% of the median",
    ]


@given(digits=st.floats(1.1, 8.9), exponent=st.integers(-9, 5))
def test_units_are_those_of_torch(digits, exponent):
    unit = select_unit(digits * 10.0**exponent)
    assert (unit.symbol, unit.size_s) == torch_common.select_unit(digits * 10.0**exponent)


@pytest.mark.parametrize(
    ("seconds", "symbol"),
    [(0.0, "ns"), (5e-324, "ns"), (9.99e-7, "ns"), (1e-6, "us"), (-2e-3, "ms"), (1e308, "s")],
)
def test_every_time_has_a_unit(seconds, symbol):
    assert select_unit(seconds).symbol == symbol
