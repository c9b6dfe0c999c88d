"""Which studies may start beside those that run."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from search.service.queue import Submitted, entering
from search.service.runner import Place, next_up

places = st.builds(Place, st.sampled_from(["a", "b"]), st.integers(1, 3))


def submitted(number: int, place: Place) -> Submitted:
    return entering(str(number), "e", place.devices, place.at_once, "me")


def of_row(one: Submitted) -> Place:
    return Place(one.devices, one.at_once)


@given(st.lists(places, max_size=8))
def test_devices_never_bear_more_than_the_strictest_of_those_on_them_allows(asked):
    queue = [submitted(number, place) for number, place in enumerate(asked)]
    running = ()
    while queue:
        started = next_up(queue, running, of_row)
        running = (*running, *started)
        on = defaultdict(list)
        for one in running:
            on[one.devices].append(one.at_once)
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
    first, second = submitted(0, Place("gpus", 1)), submitted(1, Place("gpus", 2))

    assert next_up([second], [first], of_row) == ()
    assert next_up([first], [second], of_row) == ()
