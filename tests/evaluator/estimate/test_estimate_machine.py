"""What an environment tells of rates, and what is assumed where it is silent."""

import pytest

from evaluator.estimate.hardware import Group, machine_of
from evaluator.machine import core_count
from records.study import Environment, Link


def environment(**facts):
    return Environment(
        **{
            "name": "there",
            "device": "cuda",
            "accelerator": "NVIDIA H100",
            "world_size": 16,
            "ranks_per_node": 8,
            **facts,
        }
    )


CPU = {"device": "cpu", "accelerator": "Some Processor, 2 cores", "ranks_per_node": 4}


def test_a_known_accelerator_has_a_part_of_its_peak_and_another_some_rate():
    assert machine_of(environment(), "bf16", 16).flops_per_s == pytest.approx(989.4e12 / 2)
    assert machine_of(environment(accelerator="a new one"), "bf16", 16).flops_per_s > 0


def test_cores_are_read_from_the_name_of_the_processor():
    assert core_count(environment(**CPU)) == 2
    assert core_count(environment(**{**CPU, "accelerator": "Some Processor"})) is None
    assert core_count(environment(accelerator="NVIDIA H100, 2 cores")) is None


@pytest.mark.parametrize(("ranks", "crowding"), [(1, 1), (2, 1), (4, 2), (8, 2)])
def test_ranks_of_a_node_share_its_cores(ranks, crowding):
    assert machine_of(environment(**CPU), "fp32", ranks).crowding == crowding


@pytest.mark.parametrize(("ranks", "threads", "speed"), [(1, 2, 2), (1, 4, 2), (2, 2, 1)])
def test_threads_hasten_a_rank_as_far_as_there_are_cores(ranks, threads, speed):
    one = machine_of(environment(**CPU), "fp32", ranks)
    more = machine_of(environment(**CPU), "fp32", ranks, threads)

    assert more.flops_per_s == speed * one.flops_per_s


def test_told_links_count_and_their_missing_latency_is_assumed():
    told = Link(bandwidth_bytes_per_s=123e9)

    machine = machine_of(environment(scale_up=told), "bf16", 16)

    assert machine.scale_up.bandwidth_bytes_per_s == 123e9
    assert machine.scale_up.latency_s > 0
    assert machine.scale_out.bandwidth_bytes_per_s > 0


def test_a_group_leaves_its_node_when_it_reaches_further():
    machine = machine_of(environment(), "bf16", 16)

    assert not machine.leaves_node(Group(size=8, stride=1))
    assert not machine.leaves_node(Group(size=2, stride=4))
    assert machine.leaves_node(Group(size=2, stride=8))


def test_work_takes_as_long_as_the_busiest_rank_or_all_of_it_on_the_cores():
    own, shared = (machine_of(environment(**CPU), "fp32", ranks) for ranks in (2, 4))

    assert own.together([1.0, 3.0]) == 3.0
    assert shared.together([1.0, 3.0]) == 4.0
