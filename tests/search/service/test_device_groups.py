"""Which studies may start beside those that run."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from search.service.runner import next_up
from tests.search.service.queueing import submission

QUEUES = st.lists(
    st.builds(
        submission,
        st.uuids().map(str),
        devices=st.sampled_from(["a", "b"]),
        parallel_studies=st.integers(1, 3),
    ),
    max_size=8,
)


@given(QUEUES)
def test_devices_never_bear_more_than_the_strictest_of_those_on_them_allows(queue):
    running = ()
    while queue:
        started = next_up(queue, running)
        running = (*running, *started)
        on = defaultdict(list)
        for one in running:
            on[one.devices].append(one.parallel_studies)
        assert all(len(there) <= min(there) for there in on.values())
        assert started or running  # something goes on, or the queue would stand for ever
        queue = [one for one in queue if one not in started]
        running = running[1:]


@given(QUEUES)
def test_on_one_device_nobody_overtakes_who_came_earlier(queue):
    started = next_up(queue, ())

    for devices in "ab":
        there = [one for one in queue if one.devices == devices]
        count = sum(one.devices == devices for one in started)
        assert [one for one in started if one.devices == devices] == there[:count]


def test_environments_that_share_devices_wait_for_each_other():
    first, second = submission("first"), submission("second", parallel_studies=2)

    assert next_up([second], [first]) == ()
    assert next_up([first], [second]) == ()
