"""Every knob is live: its effect is seen in the operators, the messages or the set-up of a step."""

import re
from dataclasses import asdict

import pytest

from tests.evaluator.conftest import rank_workload

TINY = asdict(rank_workload(layer_count=2, ffn_size=48))
WIDE = TINY | {"hidden_size": 256, "ffn_size": 512, "global_batch": 2}
DEEP = TINY | {"layer_count": 4}
DESCEND = "work_entries:descend"
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


def test_replicas_send_what_their_buckets_and_hooks_make_of_the_gradients(traced):
    plain, small, halved, compressed = (
        traced(DDP | changes, WIDE).sent("all_reduce")
        for changes in (
            {},
            {"ddp_bucket_mib": 1},
            {"ddp_comm_hook": "fp16"},
            {"ddp_comm_hook": "power_sgd"},
        )
    )

    assert [kind for kind, _ in plain] == ["float"]
    assert len(small) > 3
    assert [kind for kind, _ in halved] == ["c10::Half"]
    assert elements(plain) == elements(small) == elements(halved)
    assert elements(compressed) < 0.1 * elements(plain)


@pytest.mark.parametrize("is_asked", [True, False])
def test_replicas_view_their_buckets_know_a_static_graph_and_compute_in_threads_as_asked(
    traced, is_asked
):
    asked = {"ddp_bucket_view": is_asked, "ddp_static_graph": is_asked, "threads_per_rank": 2}

    run = traced(DDP | asked | {"micro_batch": 4}, entry="work_entries:describe")

    is_copied = "torch.distributed.ddp.reducer::copy_bucket_to_grad" in run.counts()
    ranks = run.documents(".described.json")
    assert is_copied is not is_asked
    assert [(one["has_static_graph"], one["thread_count"]) for one in ranks] == [(is_asked, 2)] * 2


# Each launch sets three knobs, and each knob shows in its own operators or messages.
@pytest.mark.parametrize(
    ("reshard", "gathers", "loop", "operators", "reduction", "precision", "gathered", "reduced"),
    [
        ("auto", 2, "for_loop", set(), "parameter", "fp32", "float", "float"),
        (
            *("always", 2, "foreach", {"aten::_foreach_addcdiv_"}),
            *("bf16", "fp32", "float", "c10::BFloat16"),
        ),
        (
            *("never", 1, "fused", {"aten::_fused_adamw_"}),
            *("fp32", "bf16", "c10::BFloat16", "float"),
        ),
    ],
    ids=["auto", "always", "never"],
)
def test_shards_are_gathered_again_reduced_in_a_format_and_updated_in_a_loop_as_asked(
    traced, reshard, gathers, loop, operators, reduction, precision, gathered, reduced
):
    asked = {"fsdp_reshard": reshard, "optimizer_loop": loop, "fsdp_reduction": reduction}

    run = traced(FSDP | asked, TINY | {"precision": precision})

    known = {"aten::_foreach_addcdiv_", "aten::_fused_adamw_"}
    assert run.counts()["FSDP::all_gather (blocks.0)"] == gathers
    assert known & run.counts().keys() == operators
    assert {kind for kind, _ in run.sent("all_gather")} == {gathered}
    assert {kind for kind, _ in run.sent("all_reduce")} == {reduced}


def test_a_pipeline_gathers_its_parameters_once(traced):
    run = traced(FSDP | PP | {"fsdp_reshard": "auto"})

    assert run.counts()["FSDP::all_gather (blocks.0)"] == 1


def test_prefetched_parameters_are_gathered_before_they_are_needed(traced):
    plain = named(traced(FSDP, DEEP), r"FSDP::(all_gather|pre_forward) \(blocks\.[12]\)")

    ahead = named(
        traced(FSDP | {"fsdp_prefetch": 2}, DEEP),
        r"FSDP::(all_gather|pre_forward) \(blocks\.[12]\)",
    )

    second_block = "FSDP::pre_forward (blocks.1)"
    assert plain.index(second_block) < plain.index("FSDP::all_gather (blocks.2)")
    assert ahead.index(second_block) > ahead.index("FSDP::all_gather (blocks.2)")


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


def test_autocast_multiplies_in_bf16_what_stays_in_fp32_in_every_layout(traced):
    exact = traced(ONE)
    layouts = (ONE | {"activation_checkpointing": "full"}, FSDP, TP, PP)

    cast = [traced(layout | {"compute_precision": "bf16"}) for layout in layouts]

    whole, shards, _, stages = cast  # of slices no shapes are recorded, nor formats
    assert multiplied_in(exact) == {"float"}
    assert {*map(frozenset, map(multiplied_in, (whole, shards, stages)))} == {
        frozenset({"c10::BFloat16"})
    }
    for run in cast:
        assert run.losses() == pytest.approx(exact.losses(), rel=5e-2)
        assert run.losses() != exact.losses()


def multiplied_in(run) -> set[str]:
    """The number formats of matrix products, where the trace has them."""
    spans = [span for span in run.spans() if span["name"] == MATRIX_PRODUCT]
    assert spans
    return {span["args"]["Input type"][0] for span in spans}


def test_checkpointing_computes_again_all_or_what_is_cheap(traced):
    none, selective, full = (
        traced(ONE | {"activation_checkpointing": kind}).counts()
        for kind in ("none", "selective", "full")
    )

    assert (none[MATRIX_PRODUCT], none[ATTENTION]) == (45, 2)
    assert (full[MATRIX_PRODUCT], full[ATTENTION]) == (59, 4)
    assert selective["aten::silu"] > none["aten::silu"]
    assert selective["MmBackward0"] == none["MmBackward0"]
    assert traced({"micro_batch": 2}).counts()[ATTENTION] == 4 * none[ATTENTION]


def test_slices_exchange_parts_of_sequences_and_of_the_vocabulary(traced):
    parts, whole_sequences, whole_logits = (
        traced(TP | changes).counts()
        for changes in ({}, {"sequence_parallel": False}, {"loss_parallel": False})
    )

    gathers, sums = "gloo:all_gather", "gloo:all_reduce"
    assert whole_sequences[gathers] == 0 < parts[gathers] < whole_logits[gathers]
    assert whole_sequences[sums] > 0
    assert parts[sums] > whole_logits[sums]


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


def test_more_stages_per_rank_cross_more_borders(traced, scheduled):
    one_stage = traced(PP | {"pipeline_schedule": "looped_bfs"}, DEEP)

    sent = scheduled("looped_bfs").sent("send")

    assert len(sent) == 3 * len(one_stage.sent("send"))


@pytest.mark.slow
def test_blocks_are_compiled_when_asked(ranks):
    small = TINY | {"layer_count": 1, "hidden_size": 16, "sequence_length": 8}
    plain, compiled = (
        ranks.run(
            ONE | {"compile": is_asked},
            small,
            steps=(1, 2, 1),
            entry="work_entries:describe_compiled",
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
