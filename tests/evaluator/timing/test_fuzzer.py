"""Samples are random and yet the same everywhere; what cannot be drawn says why."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluator.timing.fuzzer import (
    FuzzedParameter,
    FuzzedTensor,
    Fuzzer,
    FuzzerError,
    rejection_rate,
)
from records.errors import CclsearchError

DIE = FuzzedParameter(name="die", minval=1, maxval=6, distribution="uniform")
SCRIPT = Path(__file__).with_name("fuzzed_job.py")
JOB = runpy.run_path(str(SCRIPT))
job, listed = JOB["job"], JOB["listed"]


def die_with(constraint, *, strict):
    """A die, and a coin that together with it is rejected by the constraint."""
    die = FuzzedParameter(name="die", minval=1, maxval=6, distribution="uniform", strict=strict)
    coin = FuzzedParameter(name="coin", minval=0, maxval=5, distribution="uniform")
    return Fuzzer(parameters=[die, coin], constraints=[constraint], seed=3)


def counts(samples, name, values):
    return [sum(sample.parameters[name] == value for sample in samples) for value in values]


def test_two_processes_draw_the_same_samples():
    command = [sys.executable, str(SCRIPT), "5"]
    first, second = (
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second == listed(5)
    assert listed(5) != listed(6)


@given(seed=st.integers(0, 2**64), count=st.integers(0, 12), more=st.integers(0, 5))
def test_a_sample_depends_on_nothing_but_specification_seed_and_index(seed, count, more):
    fuzzer = job(seed)
    assert fuzzer.take(count + more)[:count] == fuzzer.take(count) == job(seed).take(count)


def test_samples_of_one_seed_differ():
    scales = [sample.parameters["scale"] for sample in job(1).take(30)]
    assert len(set(scales)) == 30


@given(seed=st.integers(0, 1000))
def test_every_sample_meets_its_constraints_and_limits(seed):
    for sample in job(seed).take(3):
        given_values = sample.parameters
        assert list(given_values) == ["rank_count", "rows", "columns", "scale"]
        assert given_values["rows"] * given_values["columns"] % given_values["rank_count"] == 0
        assert sample.tensors["x"].shape == (given_values["rows"], given_values["columns"])
        assert sample.tensors["x"].numel <= 900


def test_a_strict_parameter_keeps_its_distribution_under_a_heavy_constraint():
    # A die of 6 passes for one coin in six, and a die of 1 for all.
    samples = die_with(lambda given: given["coin"] <= 6 - given["die"], strict=True).take(3000)
    assert stats.chisquare(counts(samples, "die", range(1, 7))).pvalue > 0.01
    assert rejection_rate(samples) > 0.5


def test_a_parameter_that_is_not_strict_takes_the_distribution_of_what_passes():
    samples = die_with(lambda given: given["coin"] <= 6 - given["die"], strict=False).take(3000)
    found = counts(samples, "die", range(1, 7))
    assert stats.chisquare(found).pvalue < 1e-6
    assert (
        stats.chisquare(found, [3000 * passing / 21 for passing in range(6, 0, -1)]).pvalue > 0.01
    )


def test_the_rejection_rate_counts_what_was_drawn_in_vain():
    samples = Fuzzer(parameters=[DIE], constraints=[lambda given: given["die"] > 3]).take(500)
    assert rejection_rate(samples) == pytest.approx(0.5, abs=0.05)
    assert rejection_rate(Fuzzer(parameters=[DIE]).take(5)) == 0
    assert rejection_rate([]) is None


def test_constraints_that_nothing_meets_end_with_the_rejection_rate():
    fuzzer = Fuzzer(parameters=[DIE], constraints=[lambda given: given["die"] > 6])
    with pytest.raises(FuzzerError, match=r"sample 0: 1000 .* 100.00% .*loosen"):
        fuzzer.take(1)


def test_a_strict_value_that_nothing_fits_ends_the_samples_where_it_is_drawn():
    fuzzer = die_with(lambda given: given["die"] != 6, strict=True)
    with pytest.raises(FuzzerError, match=r"sample \d+: 1000 attempts .* 9\d\.\d\d% "):
        fuzzer.take(100)


def test_limits_of_a_tensor_reject_like_constraints():
    tensor = FuzzedTensor(name="x", size=("die", 10), max_allocation_bytes=120)
    samples = Fuzzer(parameters=[DIE], tensors=[tensor]).take(50)
    assert {sample.parameters["die"] for sample in samples} == {1, 2, 3}


def test_a_constraint_cannot_change_what_it_judges():
    def greedy(given):
        given["die"] = 6
        return True

    with pytest.raises(TypeError):
        Fuzzer(parameters=[DIE], constraints=[greedy]).take(1)


def test_lists_are_flattened_one_level():
    other = FuzzedParameter(name="other", distribution={"x": 1.0})
    tensors = [[FuzzedTensor(name="a", size=(1,))], FuzzedTensor(name="b", size=(1,))]
    sample = Fuzzer(parameters=[[DIE], other], tensors=tensors).take(1)[0]
    assert list(sample.parameters) == ["die", "other"]
    assert list(sample.tensors) == ["a", "b"]


@pytest.mark.parametrize(
    ("parameters", "tensors"),
    [
        ([DIE, DIE], []),
        ([DIE], [FuzzedTensor(name="die", size=(1,))]),
        ([], [FuzzedTensor(name="die", size=(1,)), FuzzedTensor(name="die", size=(2,))]),
    ],
    ids=["parameters", "parameter and tensor", "tensors"],
)
def test_a_name_is_given_once(parameters, tensors):
    with pytest.raises(FuzzerError, match="'die' is given twice; rename"):
        Fuzzer(parameters=parameters, tensors=tensors)


@pytest.mark.parametrize(
    "tensor",
    [
        FuzzedTensor(name="x", size=("missing",)),
        FuzzedTensor(name="x", size=(4,), steps=("missing",)),
        FuzzedTensor(name="x", size=(4,), dim_parameter="missing"),
    ],
    ids=["size", "step", "dimensions"],
)
def test_a_tensor_of_an_unknown_parameter_is_refused(tensor):
    with pytest.raises(FuzzerError, match="'missing'; add it"):
        Fuzzer(parameters=[DIE], tensors=[tensor])


def test_a_negative_seed_is_refused():
    with pytest.raises(FuzzerError, match="zero or more"):
        Fuzzer(parameters=[DIE], seed=-1)


def test_errors_are_ours_and_value_errors():
    assert issubclass(FuzzerError, CclsearchError)
    assert issubclass(FuzzerError, ValueError)
