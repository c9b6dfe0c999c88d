"""Every knob is live: its effect is seen in the operators, the messages or the set-up of a step."""

import re

import pytest

TINY = {
    "layer_count": 2,
    "hidden_size": 32,
    "head_count": 4,
    "kv_head_count": 2,
    "ffn_size": 48,
    "vocab_size": 64,
    "sequence_length": 32,
    "global_batch": 8,
    "precision": "fp32",
    "seed": 42,
}
WIDE = TINY | {"hidden_size": 256, "ffn_size": 512, "global_batch": 2}
DEEP = TINY | {"layer_count": 4}
DESCEND = "training_entries:descend"
ONE = {"micro_batch": 8}
DDP = {"dp_replicate": 2, "micro_batch": 1}
FSDP = {"dp_shard": 2, "micro_batch": 4}
TP = {"tp": 2, "micro_batch": 8}
CP = {"cp": 2, "micro_batch": 8}
PP = {"pp": 2, "micro_batch": 2}
TWO_STAGES = PP | {"stages_per_rank": 2}
ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"
MATRIX_PRODUCT = "aten::mm"


@pytest.fixture
def traced(ranks):
    """Runs a configuration and gives what its ranks left, with the trace of one step."""

    def run(config, workload=TINY, **changes):
        finished = ranks.run(config, workload, steps=(1, 1, 1), **changes)
        finished.steps()
        return finished

    return run


def test_smaller_buckets_are_more_messages(traced):
    one_bucket = traced(DDP, WIDE).sent("all_reduce")

    small_buckets = traced(DDP | {"ddp_bucket_mib": 1}, WIDE).sent("all_reduce")

    assert len(one_bucket) == 1
    assert len(small_buckets) > 3
    assert elements(small_buckets) == elements(one_bucket)


@pytest.mark.parametrize(("is_view", "is_copied"), [(True, False), (False, True)])
def test_gradients_that_view_their_buckets_are_not_copied_back(traced, is_view, is_copied):
    run = traced(DDP | {"ddp_bucket_view": is_view}, WIDE)

    assert ("torch.distributed.ddp.reducer::copy_bucket_to_grad" in run.counts()) is is_copied


@pytest.mark.parametrize("is_static", [True, False])
def test_replicas_know_that_their_graph_is_static(ranks, is_static):
    config = DDP | {"ddp_static_graph": is_static, "micro_batch": 4}

    run = ranks.run(config, TINY, entry="training_entries:describe")

    assert [one["has_static_graph"] for one in run.documents(".described.json")] == [is_static] * 2


def test_a_half_precision_hook_halves_the_messages(traced):
    plain = traced(DDP, WIDE).sent("all_reduce")

    halved = traced(DDP | {"ddp_comm_hook": "fp16"}, WIDE).sent("all_reduce")

    assert [kind for kind, _ in plain] == ["float"]
    assert [kind for kind, _ in halved] == ["c10::Half"]
    assert elements(halved) == elements(plain)


def test_power_sgd_sends_far_less(traced):
    plain = traced(DDP, WIDE).sent("all_reduce")

    compressed = traced(DDP | {"ddp_comm_hook": "power_sgd"}, WIDE).sent("all_reduce")

    assert elements(compressed) < 0.1 * elements(plain)


@pytest.mark.parametrize(
    ("reshard", "pipeline", "gathers"),
    [("auto", {}, 2), ("always", {}, 2), ("never", {}, 1), ("auto", PP, 1)],
    ids=["auto", "always", "never", "auto_in_a_pipeline"],
)
def test_resharded_parameters_are_gathered_again(traced, reshard, pipeline, gathers):
    run = traced(FSDP | pipeline | {"fsdp_reshard": reshard})

    assert run.counts()["FSDP::all_gather (blocks.0)"] == gathers


def test_prefetched_parameters_are_gathered_before_they_are_needed(traced):
    plain = named(traced(FSDP, DEEP), r"FSDP::(all_gather|pre_forward) \(blocks\.[12]\)")

    ahead = named(
        traced(FSDP | {"fsdp_prefetch": 2}, DEEP),
        r"FSDP::(all_gather|pre_forward) \(blocks\.[12]\)",
    )

    second_block = "FSDP::pre_forward (blocks.1)"
    assert plain.index(second_block) < plain.index("FSDP::all_gather (blocks.2)")
    assert ahead.index(second_block) > ahead.index("FSDP::all_gather (blocks.2)")


@pytest.mark.parametrize(("reduction", "kind"), [("parameter", "float"), ("bf16", "c10::BFloat16")])
def test_gradients_are_added_up_in_the_asked_format(traced, reduction, kind):
    run = traced(FSDP | {"fsdp_reduction": reduction})

    assert {kind for kind, _ in run.sent("all_reduce")} == {kind}


def test_bf16_work_can_be_reduced_in_fp32(traced):
    run = traced(FSDP | {"fsdp_reduction": "fp32"}, TINY | {"precision": "bf16"})

    assert {kind for kind, _ in run.sent("all_gather")} == {"c10::BFloat16"}
    assert {kind for kind, _ in run.sent("all_reduce")} == {"float"}


@pytest.mark.parametrize(
    ("loop", "operators"),
    [
        ("for_loop", set()),
        ("foreach", {"aten::_foreach_addcdiv_"}),
        ("fused", {"aten::_fused_adamw_"}),
    ],
)
def test_the_optimizer_goes_over_parameters_as_asked(traced, loop, operators):
    run = traced(FSDP | {"optimizer_loop": loop})

    known = {"aten::_foreach_addcdiv_", "aten::_fused_adamw_"}
    assert known & run.counts().keys() == operators


@pytest.mark.parametrize(
    ("layout", "backend", "kernel"),
    [
        (ONE, "math", MATH),
        (ONE, "flash", ATTENTION),
        (ONE, "auto", ATTENTION),
        (CP | {"context_method": "ulysses"}, "math", MATH),
    ],
    ids=["math", "flash", "auto", "math in context parallelism"],
)
def test_attention_runs_on_the_asked_kernel(traced, layout, backend, kernel):
    counts = traced(layout | {"attention_backend": backend}).counts()

    assert {MATH, ATTENTION} & counts.keys() == {kernel}
    assert counts[kernel] == TINY["layer_count"]


@pytest.mark.parametrize(("kind", "products", "attentions"), [("none", 45, 2), ("full", 59, 4)])
def test_full_checkpointing_computes_forward_passes_again(traced, kind, products, attentions):
    counts = traced(ONE | {"activation_checkpointing": kind}).counts()

    assert (counts[MATRIX_PRODUCT], counts[ATTENTION]) == (products, attentions)


def test_selective_checkpointing_computes_again_what_is_cheap(traced):
    plain = traced(ONE).counts()

    selective = traced(ONE | {"activation_checkpointing": "selective"}).counts()

    assert selective["aten::silu"] > plain["aten::silu"]
    assert selective["MmBackward0"] == plain["MmBackward0"]


def test_micro_batches_are_passes_of_their_own(traced):
    assert traced({"micro_batch": 2}).counts()[ATTENTION] == 4 * traced(ONE).counts()[ATTENTION]


def test_sequence_parallelism_gathers_the_parts_of_sequences(traced):
    parts = traced(TP).counts()

    whole = traced(TP | {"sequence_parallel": False}).counts()

    assert parts["gloo:all_gather"] > 0
    assert whole["gloo:all_gather"] == 0
    assert whole["gloo:all_reduce"] > 0


def test_loss_parallelism_reduces_sums_instead_of_gathering_logits(traced):
    parts = traced(TP).counts()

    whole = traced(TP | {"loss_parallel": False}).counts()

    assert parts["gloo:all_gather"] < whole["gloo:all_gather"]
    assert parts["gloo:all_reduce"] > whole["gloo:all_reduce"]


@pytest.mark.parametrize(
    ("method", "collective", "count"),
    [("ring", "all_to_all", 8), ("ulysses", "all_to_all", 16), ("all_gather", "all_gather", 2)],
)
def test_context_methods_exchange_sequences_in_their_own_way(traced, method, collective, count):
    run = traced(CP | {"context_method": method})

    others = {"all_to_all", "all_gather"} - {collective}
    assert len(run.sent(collective)) == count
    assert [message for other in others for message in run.sent(other)] == []


@pytest.mark.parametrize(
    ("schedule", "order"), [("gpipe", "FFFFBBBB"), ("1f1b", "FBFBFBFB")], ids=["gpipe", "1f1b"]
)
def test_simple_schedules_order_forward_and_backward_passes(traced, schedule, order):
    run = traced(PP | {"pipeline_schedule": schedule})

    passes = named(run, f"{ATTENTION}(_backward)?", rank=1)
    assert "".join("B" if name.endswith("_backward") else "F" for name in passes) == order


SCHEDULES = (
    *("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"),
)


@pytest.fixture
def scheduled(traced):
    """Runs a schedule of several stages per rank, trained so that a mistake shows in the loss."""
    return lambda name: traced(TWO_STAGES | {"pipeline_schedule": name}, DEEP, entry=DESCEND)


def test_every_schedule_of_several_stages_has_its_own_order(scheduled):
    orders = [tuple(named(scheduled(name), r"PP:\(?\d[FBIW].*")) for name in SCHEDULES]

    assert len(set(orders)) == len(SCHEDULES)
    assert all(len(order) >= 12 for order in orders)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_of_several_stages_learns_what_one_rank_learns(traced, scheduled, name):
    expected = traced(ONE, DEEP, entry=DESCEND).losses()

    assert scheduled(name).losses() == pytest.approx(expected, rel=1e-4)


def test_more_stages_per_rank_cross_more_borders(traced):
    one_stage = traced(PP | {"pipeline_schedule": "looped_bfs"}, DEEP)

    two_stages = traced(TWO_STAGES | {"pipeline_schedule": "looped_bfs"}, DEEP)

    assert len(two_stages.sent("send")) == 3 * len(one_stage.sent("send"))


def test_a_rank_computes_with_the_asked_threads(ranks):
    run = ranks.run(ONE | {"threads_per_rank": 2}, TINY, entry="training_entries:describe")

    assert [one["thread_count"] for one in run.documents(".described.json")] == [2]


def test_blocks_are_compiled_when_asked(ranks):
    small = TINY | {"layer_count": 1, "hidden_size": 16, "sequence_length": 8}
    plain, compiled = (
        ranks.run(
            ONE | {"compile": is_asked},
            small,
            steps=(1, 2, 1),
            entry="training_entries:describe_compiled",
        )
        for is_asked in (False, True)
    )

    assert compiled.losses() == pytest.approx(plain.losses(), rel=1e-4)
    assert [run.documents(".described.json")[0]["is_compiled"] for run in (plain, compiled)] == [
        [False],
        [True],
    ]
    assert any("CompiledFunction" in name for name in compiled.counts())
    assert not any("CompiledFunction" in name for name in plain.counts())


def elements(messages: list[tuple[str, list[int]]]) -> int:
    return sum(shape[0] for _, shape in messages)


def named(run, pattern: str, rank: int = 0) -> list[str]:
    """Names in a rank's trace that fit, in the order in which they began."""
    return [span["name"] for span in run.spans(rank) if re.fullmatch(pattern, span["name"])]
