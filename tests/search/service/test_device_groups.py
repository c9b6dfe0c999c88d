"""Which studies may start beside those that run."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from search.service.queue import Submitted, pending_submission
from search.service.runner import DeviceGroup, next_up

places = st.builds(DeviceGroup, st.sampled_from(["a", "b"]), st.integers(1, 3))


def submitted(number: int, place: DeviceGroup) -> Submitted:
    return pending_submission(str(number), "e", place.devices, place.parallel_studies, "me")


def of_row(one: Submitted) -> DeviceGroup:
    return DeviceGroup(one.devices, one.parallel_studies)


@given(st.lists(places, max_size=8))
def test_devices_never_bear_more_than_the_strictest_of_those_on_them_allows(asked):
    queue = [submitted(number, place) for number, place in enumerate(asked)]
    running = ()
    while queue:
        started = next_up(queue, running, of_row)
        running = (*running, *started)
        on = defaultdict(list)
        for one in running:
            on[one.devices].append(one.parallel_studies)
        assert all(len(there) <= min(there) for there in on.values())
        assert started or running  # something goes on, or the queue would stand for ever
        queue = [one for one in queue if one not in started]
        running = running[1:]


@given(st.lists(places, max_size=8))
def test_on_one_device_nobody_overtakes_who_came_earlier(asked):
    queue = [submitted(number, place) for number, place in enumerate(asked)]
    started = next_up(queue, (), of_row)

    for devices in "ab":
        there = [one for one in queue if one.devices == devices]
        count = sum(one.devices == devices for one in started)
        assert [one for one in started if one.devices == devices] == there[:count]


def test_environments_that_share_devices_wait_for_each_other():
    first, second = submitted(0, DeviceGroup("gpus", 1)), submitted(1, DeviceGroup("gpus", 2))

    assert next_up([second], [first], of_row) == ()
    assert next_up([first], [second], of_row) == ()
