"""The estimate of prompts read and answered: a case worked out by hand, and what saves time."""

from dataclasses import replace

import pytest

from evaluator.estimate.hardware import Machine
from evaluator.estimate.step_time import estimate_inference
from evaluator.rank.job import Config, Precision, Workload
from records.study import Link

WORK = Workload(
    layer_count=2,
    hidden_size=8,
    head_count=2,
    kv_head_count=1,
    ffn_size=16,
    vocab_size=32,
    sequence_length=4,
    output_length=2,
    global_batch=4,
    precision=Precision.BF16,
    seed=1,
)
LAYER = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8
HEAD = 32 * 8 + 8
MACHINE = Machine(
    flops_per_s=1000.0,
    memory_bytes_per_s=1000.0,
    dispatch_s=0.001,
    call_s=0.01,
    scale_up=Link(bandwidth_bytes_per_s=1000.0, latency_s=0.001),
    scale_out=Link(bandwidth_bytes_per_s=1000.0, latency_s=0.001),
    ranks_per_node=8,
)


def parts(work=WORK, **knobs):
    return estimate_inference(work, Config(**knobs), MACHINE)


def test_a_small_case_is_as_worked_out_by_hand():
    seen = parts(micro_batch=2)

    prompt = 4 * (2 * 2 * LAYER + 2 * (2 * 4 * 8))
    answer = 2 * 2 * LAYER + 2 * (2 * 2 * 5 * 8)
    assert seen["compute"] == pytest.approx(2 * 2 * (prompt + answer + 2 * 2 * HEAD) / 1000)
    cache = 2 * 5 * 2 * 2 * 4
    assert seen["memory_reads"] == pytest.approx(2 * 2 * (256 + 2 * LAYER + cache) / 1000)
    assert seen["launch_overhead"] == pytest.approx(2 * 2 * (2 * 40 + 15) * 0.001)
    assert seen["tensor_communication"] == 0


def test_larger_rounds_read_the_weights_less_often():
    small, large = (parts(micro_batch=size) for size in (1, 4))

    assert large["memory_reads"] < small["memory_reads"] / 2
    assert large["launch_overhead"] == small["launch_overhead"] / 4
    assert large["compute"] == pytest.approx(small["compute"])


def test_replicas_share_the_requests_and_slices_share_the_weights():
    alone, replicas, slices = parts(), parts(dp_replicate=2), parts(tp=2)

    assert replicas["compute"] == alone["compute"] / 2
    assert slices["memory_reads"] < 0.6 * alone["memory_reads"]
    assert slices["tensor_communication"] > 0 == replicas["tensor_communication"]


def test_experts_are_read_as_far_as_tokens_meet_them():
    experts = replace(WORK, expert_count=8, experts_per_token=1, expert_ffn_size=64)

    saved_with_experts, saved = (
        1 - parts(work, micro_batch=4)["memory_reads"] / parts(work)["memory_reads"]
        for work in (experts, WORK)
    )

    assert 0 < saved_with_experts < saved / 2
