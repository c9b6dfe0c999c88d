"""What ranks left of their steps: times, tokens and losses, none believed unchecked."""

import json
from dataclasses import replace

import pytest

from evaluator.evaluate import evidence
from evaluator.metrics.registry import measure_all
from evaluator.ports import JobResult
from evaluator.rank.protocol import RankExit
from evaluator.samples import other_work, parts_fault, read_measurement, serving
from records.trial import Failed, FailureKind, Measurement, Serving
from records.workload import Workload
from tests.support.records import measured, study

REFERENCE = replace(measured().measurement, losses=(4.0, 3.9, 3.8))


def trained(*losses):
    return replace(REFERENCE, losses=losses)


@pytest.mark.parametrize(
    "losses",
    [
        (4.0, 3.9, 3.8),
        (4.0 * 1.0019, 3.9 / 1.0019, 3.8),
        (4.0, 3.9),  # fewer steps than the reference
        (4.0, 3.9, 3.8, 3.7),
        (),  # a job that tells no losses
    ],
)
def test_losses_that_differ_by_rounding_are_the_same_work(losses, study):
    assert other_work(trained(*losses), REFERENCE, study) is None


def test_losses_that_differ_by_more_than_rounding_are_other_work(study):
    failed = other_work(trained(4.0, 3.9, 3.8 * 1.003), REFERENCE, study)

    assert failed.kind is FailureKind.INVALID_CONFIG
    assert failed.message == (
        "computed something else: loss 3.8114 at step 2, the first measured trial had 3.8"
    )


NORMED = replace(REFERENCE, grad_norms=(2.1, 1.7, 1.5))


@pytest.mark.parametrize("norms", [(2.1, 1.7, 1.5), (2.5, 1.5, 1.4), (2.2, 1.5, 0.9, 0.1), ()])
def test_gradient_norms_of_one_scale_are_the_same_work(norms, study):
    assert other_work(replace(REFERENCE, grad_norms=norms), NORMED, study) is None


def test_gradient_norms_of_zero_in_the_first_measured_trial_are_not_compared():
    reference = replace(REFERENCE, grad_norms=(0.0, 0.0, 0.0))

    assert other_work(NORMED, reference, study()) is None


@pytest.mark.parametrize("scale", [0.5, 2**-0.5, 512.0])
def test_gradients_of_another_scale_are_other_work_although_losses_are_equal(scale, study):
    scaled = replace(REFERENCE, grad_norms=tuple(norm * scale for norm in NORMED.grad_norms))

    failed = other_work(scaled, NORMED, study)

    assert failed.kind is FailureKind.INVALID_CONFIG
    assert failed.message == (
        f"computed something else: gradient norm {2.1 * scale:.4g} at step 0, the first measured "
        "trial had 2.1; losses alone may not show it"
    )


@pytest.mark.parametrize(("precision", "same"), [("fp32", False), ("bf16", True), ("fp8", True)])
def test_a_coarser_precision_allows_for_more_rounding(precision, same, study):
    coarse = replace(study, workload=replace(study.workload, precision=precision))

    failed = other_work(trained(4.0 * 1.04), REFERENCE, coarse)

    assert (failed is None) is same


@pytest.mark.parametrize(("precision", "same"), [(None, False), ("tf32", True), ("bf16", True)])
def test_matrices_multiplied_in_a_coarser_format_allow_for_more_rounding(precision, same, study):
    coarse = replace(trained(4.0 * 1.005), compute_precision=precision)

    assert (other_work(coarse, REFERENCE, study) is None) is same
    assert (other_work(REFERENCE, coarse, study) is None) is same


S = 10**9
WORKLOAD = Workload(
    name="w", phase="inference", global_batch=4, sequence_length=10, output_length=5
)
ONE_ROUND = [(0, 2 * S, 10 * S), (10 * S, 14 * S, 20 * S)]
TWO_ROUNDS = [(100 * S, 101 * S, 105 * S, 107 * S, 119 * S)]
MEASUREMENT = replace(
    measured().measurement, step_times_s=((8.0, 9.0, 8.0), (8.0, 8.0, 8.0)), tokens_per_step=60
)
SERVED = Serving(
    first_token_times_s=((1.0, 5.0, 2.0), (3.0, 1.0, 1.0)),
    next_token_times_s=((0.1, 0.1, 0.3), (0.2, 0.2, 0.1)),
    output_tokens_per_step=20,
)


def metrics(served: Serving | None, workload: Workload = WORKLOAD) -> dict[str, float]:
    asked = replace(study(), workload=workload)
    seen = evidence(asked, replace(MEASUREMENT, serving=served), traces=None)
    return {value.name: value.value for value in measure_all(seen).values}


@pytest.mark.parametrize(
    ("ranks", "answer_length", "first_s", "next_s"),
    [
        ([ONE_ROUND], 5, ((2.0, 4.0),), ((2.0, 1.5),)),
        ([TWO_ROUNDS], 5, (((1 + 7) / 2,),), (((4 + 12) / 2 / 4,),)),  # the second waits
        ([ONE_ROUND[:1], ONE_ROUND[1:]], 5, ((2.0,), (4.0,)), ((2.0,), (1.5,))),
        ([ONE_ROUND], 1, ((2.0, 4.0),), None),
    ],
    ids=["one round", "two rounds", "two ranks", "one token"],
)
def test_a_step_splits_at_the_first_tokens_of_its_rounds(ranks, answer_length, first_s, next_s):
    found = serving(ranks, replace(WORKLOAD, output_length=answer_length))

    assert found == Serving(
        first_token_times_s=first_s,
        next_token_times_s=next_s,
        output_tokens_per_step=4 * answer_length,
    )


@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        (ONE_ROUND, {"phase": "training"}),
        (ONE_ROUND, {"output_length": None}),
        ([(0, S), (S, 2 * S)], {}),
    ],
    ids=["training", "unknown_answers", "no_marks"],
)
def test_where_nothing_is_known_of_tokens_nothing_is_said(steps, changes):
    assert serving([steps], replace(WORKLOAD, **changes)) is None


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([ONE_ROUND, ONE_ROUND], False),
        ([TWO_ROUNDS, TWO_ROUNDS], False),
        ([[(0, 1)], [(0, 2)]], False),
        ([ONE_ROUND, TWO_ROUNDS], True),
        ([[(0, 1)], ONE_ROUND], True),
        ([[(0, 1, 2, 3)]], True),
    ],
)
def test_parts_must_pair_and_be_the_same_everywhere(ranks, expected):
    assert (parts_fault(ranks, ()) is not None) is expected


def test_the_slowest_rank_of_the_middle_step_counts_and_training_has_no_times_of_tokens():
    values = metrics(SERVED)

    assert (values["ttft"], values["tpot"]) == (3.0, 0.2)
    assert values["output_tokens_per_s"] == 20 / 8.0
    training = metrics(None, replace(WORKLOAD, phase="training", output_length=None))
    assert not {"ttft", "tpot", "output_tokens_per_s"} & training.keys()


def test_answers_that_were_not_timed_one_by_one_have_a_throughput_but_no_times_of_tokens():
    values = metrics(None)

    assert values["output_tokens_per_s"] == 60 * (5 / 15) / 8.0
    assert not {"ttft", "tpot"} & values.keys()


MS = 1_000_000


def steps(*times_ms: float) -> list[list[int]]:
    return [[i << 40, (i << 40) + int(time_ms * MS)] for i, time_ms in enumerate(times_ms)]


@pytest.fixture
def read(study, tmp_path):
    """Reads what two ranks left: their times in ms and why they stopped."""

    def read_files(*ranks, energy=(None, None), **measure):
        for rank, (times_ms, stopped) in enumerate(ranks):
            document = {
                "rank": rank,
                "warmup": steps(1),
                "timed": times_ms if isinstance(times_ms[0], list) else steps(*times_ms),
                "stopped": stopped,
                "losses": [1.0],
                "tokens_per_step": study.workload.tokens_per_step // len(ranks),
                "peak_memory_bytes": 1,
                "device": "cpu",
                "torch": "2",
                "energy": energy[rank],
            }
            (tmp_path / f"rank{rank}.steps.json").write_text(json.dumps(document))
        exits = tuple(
            RankExit(rank=rank, status=0, signal=None, ended_ns=1) for rank in range(len(ranks))
        )
        result = JobResult(workdir=tmp_path, reason="finished", ranks=exits, wall_s=1.0)
        return read_measurement(result, replace(study, measure=replace(study.measure, **measure)))

    return read_files


@pytest.mark.parametrize(
    ("ranks", "measure", "stopped"),
    [
        ([([1.0] * 10, "precise")] * 2, {"max_timed_steps": 20}, "precise"),
        ([([1.0, 3.0] * 3, "most_steps")] * 2, {"max_timed_steps": 6}, "most_steps"),
        ([([1.0] * 3, "slower"), ([3.0] * 3, "slower")], {"stop_above_s": 0.002}, "slower"),
        ([([1.0] * 5, None)] * 2, {}, None),
    ],
)
def test_a_launch_is_believed_that_stopped_as_its_steps_say(read, ranks, measure, stopped):
    measurement = read(*ranks, **measure)

    assert isinstance(measurement, Measurement), measurement
    assert measurement.stopped == stopped
    assert [len(times) for times in measurement.step_times_s] == [len(ranks[0][0])] * 2


FEW, MANY = [1.0] * 3, [1.0] * 10
RACE = {"max_timed_steps": 20, "stop_above_s": 0.002}


@pytest.mark.parametrize(
    ("ranks", "measure", "message"),
    [
        (
            [(MANY, "precise"), ([1.0] * 9, "precise")],
            RACE,
            "rank 1 timed 9 steps, rank 0 timed 10",
        ),
        (
            [(MANY, "precise"), (MANY, "most_steps")],
            RACE,
            "rank 1 stopped for most_steps, rank 0 for precise",
        ),
        ([(FEW, "precise")] * 2, RACE, "rank 0 timed 3 steps, 5 to 20 were asked for"),
        ([([1.0] * 21, "precise")] * 2, RACE, "rank 0 timed 21 steps, 5 to 20 were asked for"),
        ([([3.0] * 2, "slower")] * 2, RACE, "rank 0 timed 2 steps, 3 to 20 were asked for"),
        ([(FEW, "slower")] * 2, RACE, "the ranks stopped for slower, their steps show no reason"),
        (
            [([3.0] * 3, "slower")] * 2,
            {},
            "the ranks stopped for slower, their steps show no reason",
        ),
        (
            [([3.0] * 5, "slower")] * 2,
            {},
            "the ranks stopped for slower, their steps show no reason",
        ),
        ([(MANY, None)] * 2, RACE, "the ranks stopped for no reason, their steps show precise"),
        (
            [([1.0, 3.0] * 3, "precise")] * 2,
            {"max_timed_steps": 20},
            "the ranks stopped for precise, their steps show no reason",
        ),
        ([(FEW, "bored")] * 2, RACE, "rank0.steps.json: Invalid enum value 'bored'"),
        ([([[5, 4]] * 3, "slower")] * 2, RACE, "rank 0 has a step that ends before it starts"),
        ([([[0, 10**400]] * 3, "slower")] * 2, RACE, "rank0.steps.json: "),
        ([([[-1, 1]] * 3, "slower")] * 2, RACE, "rank0.steps.json: Expected `int` >= 0"),
        ([([[0, 1 << 62]] * 3, "slower")] * 2, RACE, "rank0.steps.json: Expected `int` <= "),
    ],
)
def test_a_launch_is_not_believed_that_contradicts_itself(read, ranks, measure, message):
    failed = read(*ranks, **measure)

    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.METRIC_ERROR
    assert failed.message.startswith(message)


@pytest.mark.parametrize(
    ("energy", "joules"),
    [
        ([{"device": "GPU-a", "joules": 3.0}, {"device": "GPU-b", "joules": 4.0}], 7.0),
        ([{"device": "GPU-a", "joules": 3.0}, {"device": "GPU-a", "joules": 3.0}], 3.0),
        ([{"device": "GPU-a", "joules": 3.0}, None], None),
    ],
)
def test_the_energy_of_a_device_counts_once_and_not_where_one_is_unknown(read, energy, joules):
    assert read(([1.0] * 5, None), ([1.0] * 5, None), energy=energy).energy_j == joules


def test_an_energy_below_zero_is_not_believed(read):
    below = {"device": "GPU-a", "joules": -1.0}

    failed = read(([1.0] * 5, None), ([1.0] * 5, None), energy=(below, None))

    assert isinstance(failed, Failed)
    assert "rank0.steps.json: Expected `float` >= 0.0" in failed.message
