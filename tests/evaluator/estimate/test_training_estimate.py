"""The estimate of a training step: numbers worked out by hand, and laws that sizes obey."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.estimate.communication import replicated_traffic, tensor_traffic
from evaluator.estimate.hardware import Machine
from evaluator.estimate.memory import shares
from evaluator.estimate.step_time import estimate_training
from evaluator.rank.job import (
    Checkpointing,
    CommHook,
    Config,
    ContextMethod,
    OptimizerLoop,
    Precision,
    Reshard,
    Schedule,
    Workload,
)
from records.study import Link

TINY = Workload(
    layer_count=2,
    hidden_size=8,
    head_count=2,
    kv_head_count=2,
    ffn_size=16,
    vocab_size=32,
    sequence_length=4,
    global_batch=4,
    precision=Precision.FP32,
    seed=1,
)
LAYER_WEIGHTS = 4 * 8 * 8 + 3 * 8 * 16 + 2 * 8
TINY_WEIGHTS = 2 * LAYER_WEIGHTS + 2 * 32 * 8 + 8
WORK = replace(
    TINY,
    layer_count=16,
    hidden_size=512,
    head_count=8,
    kv_head_count=4,
    ffn_size=2048,
    vocab_size=8192,
    sequence_length=1024,
    global_batch=64,
)
EXPERTS = replace(
    WORK, expert_count=16, experts_per_token=2, expert_ffn_size=512, dense_layer_count=2
)
MACHINE = Machine(
    flops_per_s=1000.0,
    memory_bytes_per_s=1000.0,
    dispatch_s=0.001,
    call_s=0.01,
    scale_up=Link(bandwidth_bytes_per_s=1000.0, latency_s=0.001),
    scale_out=Link(bandwidth_bytes_per_s=100.0, latency_s=0.01),
    ranks_per_node=8,
)


def parts(work=WORK, machine=MACHINE, **knobs):
    return estimate_training(work, Config(**knobs), machine)


def traffic_of(traffic, work=WORK, **knobs):
    (share,) = shares(work, Config(**knobs))
    return traffic(share)


def test_a_small_case_is_as_worked_out_by_hand():
    seen = parts(TINY, dp_replicate=2)

    of_a_token = 2 * (2 * LAYER_WEIGHTS + 32 * 8 + 8) + 2 * (2 * 4 * 8)
    assert seen["compute"] == pytest.approx(3 * of_a_token * 8 / 1000)
    assert seen["launch_overhead"] == pytest.approx(2 * (3 * 2 * 40 + 3 * 15) * 0.001)
    assert seen["data_communication"] == pytest.approx(0.01 + 2 * 0.001 + 4 * TINY_WEIGHTS / 1000)
    assert seen["optimizer"] == pytest.approx(7 * 4 * TINY_WEIGHTS / 1000 + 12 * 18 * 0.001)
    assert seen["step_overhead"] == pytest.approx(0.5)
    spent = {name for name, seconds in seen.items() if seconds}
    named = {"compute", "launch_overhead", "data_communication", "optimizer", "step_overhead"}
    assert spent == named


def test_a_pipeline_of_two_waits_for_one_micro_batch_and_sends_hidden_states():
    seen = parts(TINY, pp=2, micro_batch=1)

    of_a_token = 2 * (LAYER_WEIGHTS + 32 * 8 + 8) + 2 * 4 * 8
    hidden_bytes = 4 * 4 * 8
    sent = 2 * (0.01 + 0.001 + hidden_bytes / 1000)
    passes = 3 * of_a_token * 4 / 1000 + (3 * 40 + 3 * 15) * 0.001 + sent
    assert seen["pipeline_transfers"] == pytest.approx(4 * sent)
    assert seen["bubble"] == pytest.approx(passes)


def test_slices_exchange_hidden_states_around_attention_and_feed_forward():
    seen = traffic_of(tensor_traffic, TINY, tp=2)

    hidden_bytes = 4 * 4 * 8
    halves = 2 * (2 * 2 * 2) + 2 * (1 + 1)
    assert seen.calls == halves + 3
    assert seen.sent_bytes == halves * hidden_bytes / 2 + 3 * 4 * 4


def test_gradients_go_around_twice_less_the_own_part_halved_by_hooks_and_cut_into_buckets():
    seen = traffic_of(replicated_traffic, TINY, dp_replicate=4)
    plain, half, cut, shard = (
        traffic_of(replicated_traffic, dp_replicate=2, **knobs)
        for knobs in (
            {"ddp_bucket_mib": 100},
            {"ddp_comm_hook": CommHook.FP16},
            {"ddp_bucket_mib": 1},
            {"dp_shard": 4},
        )
    )

    assert (seen.calls, seen.rounds) == (1, 6)
    assert seen.sent_bytes == 2 * 3 / 4 * 4 * TINY_WEIGHTS
    assert half.sent_bytes == plain.sent_bytes / 2
    assert cut.calls > 50 * plain.calls
    assert cut.sent_bytes == plain.sent_bytes
    assert shard.sent_bytes == pytest.approx(plain.sent_bytes / 4)


@given(
    pp=st.sampled_from([2, 4, 8]),
    schedule=st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B]),
)
def test_more_micro_batches_leave_a_smaller_share_of_bubble(pp, schedule):
    shares_of_bubble = [
        seen["bubble"] / seen["compute"]
        for size in (8, 4, 2, 1)
        if (seen := parts(pp=pp, micro_batch=size, pipeline_schedule=schedule))
    ]

    assert shares_of_bubble == sorted(shares_of_bubble, reverse=True)
    assert shares_of_bubble[0] > shares_of_bubble[-1]


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    checkpointing=st.sampled_from(Checkpointing),
)
def test_twice_the_batch_is_twice_the_work_of_the_passes(tp, pp, checkpointing):
    knobs = {"tp": tp, "pp": pp, "activation_checkpointing": checkpointing}

    once = parts(**knobs)
    twice = parts(replace(WORK, global_batch=2 * WORK.global_batch), **knobs)

    for name in ("compute", "recompute", "launch_overhead", "tensor_communication"):
        assert twice[name] == pytest.approx(2 * once[name])
    assert twice["optimizer"] == once["optimizer"]


LOOPED = {"pp": 4, "micro_batch": 4, "stages_per_rank": 2}
GPU = replace(MACHINE, joins_tensors=True)


@pytest.mark.parametrize(
    ("part", "less", "more"),
    [
        (
            "bubble",
            {**LOOPED, "pipeline_schedule": Schedule.ZBV},
            {**LOOPED, "pipeline_schedule": Schedule.INTERLEAVED},
        ),
        (
            "bubble",
            {**LOOPED, "pipeline_schedule": Schedule.INTERLEAVED},
            {"pp": 4, "micro_batch": 4},
        ),
        (
            "launch_overhead",
            {"activation_checkpointing": Checkpointing.NONE},
            {"activation_checkpointing": Checkpointing.SELECTIVE},
        ),
        ("launch_overhead", {"compile": True}, {}),
        ("launch_overhead", {"micro_batch": 4}, {"micro_batch": 1}),
        (
            "data_communication",
            {"dp_shard": 4, "micro_batch": 4, "fsdp_reshard": Reshard.NEVER},
            {"dp_shard": 4, "micro_batch": 4, "fsdp_reshard": Reshard.ALWAYS},
        ),
        (
            "optimizer",
            {"machine": GPU, "optimizer_loop": OptimizerLoop.FUSED},
            {"machine": GPU, "optimizer_loop": OptimizerLoop.FOREACH},
        ),
        (
            "optimizer",
            {"machine": GPU, "optimizer_loop": OptimizerLoop.FOREACH},
            {"machine": GPU, "optimizer_loop": OptimizerLoop.FOR_LOOP},
        ),
    ],
)
def test_a_part_takes_less_with_what_is_made_for_it(part, less, more):
    assert 0 < parts(**less)[part] < parts(**more)[part]


def test_stages_keep_gathered_parameters_and_plain_slices_cost_nothing_in_python():
    few, many = (parts(pp=2, dp_shard=2, micro_batch=size) for size in (8, 1))
    plain = estimate_training(WORK, Config(tp=2, pp=2), MACHINE, distributed_tensors=False)

    assert few["data_communication"] == many["data_communication"]
    assert "slicing_overhead" not in plain
    assert plain["bubble"] < parts(tp=2, pp=2)["bubble"]


def test_full_checkpointing_adds_one_forward_pass_through_the_layers():
    seen = parts(activation_checkpointing=Checkpointing.FULL)

    assert seen["recompute"] / seen["compute"] == pytest.approx(1 / 3, rel=0.1)
    for kind in (Checkpointing.NONE, Checkpointing.SELECTIVE):
        assert parts(activation_checkpointing=kind)["recompute"] == 0


@pytest.mark.parametrize("method", ContextMethod)
def test_parts_of_sequences_are_exchanged_and_halve_the_work(method):
    seen = parts(cp=2, context_method=method)

    assert seen["context_communication"] > 0
    assert seen["compute"] < 0.65 * parts()["compute"]


def test_experts_that_are_dealt_out_exchange_tokens_and_share_gradients_less():
    here, dealt = (parts(EXPERTS, dp_shard=4, ep=ep) for ep in (1, 4))

    assert here["expert_communication"] == 0 < dealt["expert_communication"]
    assert dealt["data_communication"] < here["data_communication"]
    assert dealt["compute"] == here["compute"]


def test_groups_beyond_a_node_go_over_the_links_between_nodes():
    inside = parts(dp_replicate=2, tp=4)
    outside = parts(dp_replicate=4, tp=4)

    assert inside["between_nodes"] == 0 < inside["data_communication"]
    assert outside["data_communication"] == 0 < outside["between_nodes"]
    assert outside["tensor_communication"] > 0
    # Groups in parallel share what leads out of a node.
    alone, parallel = (parts(dp_replicate=16 // tp, tp=tp)["between_nodes"] for tp in (1, 2))
    assert parallel == pytest.approx(2 * (alone / 2) * (7 / 8) / (15 / 16), rel=0.01)


def test_ranks_that_share_cores_take_turns_and_fill_each_others_bubbles():
    crowded = replace(MACHINE, crowding=2.0)
    knobs = {"dp_replicate": 2, "pp": 2}

    alone, shared = (parts(machine=machine, **knobs) for machine in (MACHINE, crowded))

    assert shared["bubble"] == 0 < alone["bubble"]
    assert shared["compute"] > 1.5 * alone["compute"]
    assert shared["data_communication"] == 2 * alone["data_communication"]
