"""Two jobs compared: parts, kernels and collectives, per step and rank."""

import pytest

from evaluator.traces.analysis.difference import TimeTaken, difference
from evaluator.traces.model import Activity, CollectiveKind, TraceSet
from evaluator.traces.testing import Span
from tests.support.traces import communication, job

STEPS = ((1, 0, 100), (2, 100, 200))


def same(*spans, rank_count=1):
    return job(*[spans] * rank_count, steps=STEPS)


def gemm(start_ns, end_ns):
    return Span(Activity.COMPUTE, start_ns, end_ns, name="gemm")


def all_reduce(start_ns, end_ns, size=8):
    return communication(CollectiveKind.ALL_REDUCE, start_ns, end_ns, size=size)


def test_parts_are_those_of_the_mean_step():
    found = difference(same(gemm(0, 40), gemm(100, 140)), same(gemm(0, 60), gemm(100, 160)))

    parts = {each.name: each for each in found.parts}
    assert parts["compute"].before == TimeTaken(time_s=pytest.approx(40e-9))
    assert parts["compute"].change_s == pytest.approx(20e-9)
    assert parts["idle"].change_s == pytest.approx(-20e-9)
    assert parts["window"].change_s == 0


def test_a_kernel_counts_per_step_and_rank_however_many_ranks_there_are():
    one = same(gemm(0, 40), gemm(100, 140))
    four = same(gemm(0, 40), gemm(100, 140), rank_count=4)

    (kernel,) = difference(one, four).kernels

    assert (kernel.name, kernel.change_s) == ("gemm", 0)
    assert kernel.after == TimeTaken(time_s=pytest.approx(40e-9), count=1)


def test_what_ran_outside_of_all_steps_does_not_count():
    found = difference(same(gemm(0, 40)), same(gemm(0, 40), gemm(300, 900), all_reduce(200, 300)))

    assert {each.change_s for each in (*found.kernels, *found.collectives)} == {0}
    assert found.collectives == ()


def test_what_one_job_does_not_have_is_absent_not_zero():
    (kernel,) = difference(same(gemm(0, 40)), same(all_reduce(0, 10))).kernels

    assert kernel.after is None
    assert kernel.change_s == pytest.approx(-20e-9)


def test_collectives_are_told_apart_by_kind_and_size():
    before = same(all_reduce(0, 10, size=8), all_reduce(20, 30, size=16))
    after = same(all_reduce(0, 10, size=8), all_reduce(20, 50, size=16), all_reduce(60, 61, size=0))

    changes = difference(before, after).collectives

    assert [each.name for each in changes] == [
        "all_reduce of 16 bytes",
        "all_reduce of unknown size",
        "all_reduce of 8 bytes",
    ]


def test_jobs_without_a_step_in_common_on_their_ranks_are_not_compared():
    one, other = (job([], [gemm(0, 9)], steps=[(step, 0, 9)]).ranks for step in (1, 2))
    apart = TraceSet(ranks=(one[0], other[1]))

    assert difference(same(gemm(0, 40)), apart) is None
