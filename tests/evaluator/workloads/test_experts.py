"""Experts give the same however tokens reach them, and training them the same in every layout."""

from collections.abc import Mapping
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from evaluator.estimate.memory import edge_weights, layer_weights
from evaluator.rank.job import Checkpointing, Precision, Schedule
from evaluator.workloads.model import (
    ExpertLayer,
    FeedForward,
    RoutedExperts,
    Router,
    Stage,
    build_decoder,
)
from tests.evaluator.conftest import rank_workload

SMALL = rank_workload(
    expert_count=8,
    experts_per_token=2,
    shared_expert_count=1,
    expert_ffn_size=32,
    dense_layer_count=1,
)
EXPERT_LAYERS = 3
MATRICES = 3
REFERENCE = {"micro_batch": 8}
ZBV = {"pipeline_schedule": Schedule.ZBV, "stages_per_rank": 2}
# Those that deal experts in ways of their own: benchmarks/parallelism_matrix.py has all.
LAYOUTS = {
    "one_rank_in_micro_batches": {"micro_batch": 2},
    "ddp": {"dp_replicate": 2, "micro_batch": 2},
    "ep2": {"dp_shard": 2, "ep": 2, "micro_batch": 4},
    "ep4": {"dp_shard": 4, "ep": 4, "micro_batch": 2},
    "fsdp4_ep2": {"dp_shard": 4, "ep": 2},
    "hsdp_ep2": {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    "ep2_pp2_split_backward": {"dp_shard": 2, "ep": 2, "pp": 2, **ZBV},
    "ep2_replicas_cp2": {"dp_replicate": 2, "cp": 2, "ep": 2, "micro_batch": 2},
    "ep2_tp2": {"dp_shard": 2, "ep": 2, "tp": 2, "micro_batch": 4},
}
SHARES = {"ddp": 1, "ep2": 2, "ep4": 4, "fsdp4_ep2": 4, "hsdp_ep2": 2}
"""How many ranks share the experts, where each holds those of all layers."""


@pytest.fixture(scope="session")
def train(ranks):
    """Trains by gradient descent on real ranks; what ran once is not run again."""

    def run(config, *, workload=SMALL, profiled_steps=0):
        steps = (1, 2, profiled_steps)
        return ranks.run(
            config, asdict(workload), steps=steps, entry="work_entries:descend_with_experts"
        )

    return run


def filled(layer: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(1)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=generator)
    return layer


def through_every_expert(layer: RoutedExperts, tokens: Tensor) -> Tensor:
    """Each token passes all experts, and those that it did not choose count nothing."""
    weights, chosen = layer.router(tokens)
    share = torch.zeros(len(tokens), layer.experts.expert_count).scatter(1, chosen, weights)
    experts = layer.experts
    gate, up = (torch.einsum("th,eih->eti", tokens, part) for part in (experts.gate, experts.up))
    answers = torch.einsum("eti,ehi->eth", F.silu(gate) * up, experts.down)
    return torch.einsum("te,eth->th", share, answers)


def gradients(layer: torch.nn.Module, result: Tensor) -> Mapping[str, Tensor]:
    layer.zero_grad()
    (result * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum().backward()
    return {name: weight.grad.clone() for name, weight in layer.named_parameters()}


@given(
    token_count=st.integers(1, 20),
    expert_count=st.integers(1, 9),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=10, deadline=None)
def test_a_token_passes_its_experts_and_no_other(token_count, expert_count, seed, data):
    per_token = data.draw(st.integers(1, expert_count))
    workload = replace(SMALL, expert_count=expert_count, experts_per_token=per_token)
    layer = filled(RoutedExperts(workload))
    tokens = torch.randn(token_count, 32, generator=torch.Generator().manual_seed(seed))

    mixed = layer(tokens.view(1, token_count, 32)).view(token_count, 32)
    expected = through_every_expert(layer, tokens)

    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-5)
    slopes = gradients(layer, expected)
    for name, gradient in gradients(layer, mixed).items():
        torch.testing.assert_close(gradient, slopes[name], rtol=1e-3, atol=1e-4)


def test_a_router_gives_the_best_experts_weights_that_add_up_to_one():
    router = filled(Router(hidden_size=32, expert_count=8, experts_per_token=3))
    tokens = torch.randn(20, 32, generator=torch.Generator().manual_seed(5))

    weights, chosen = router(tokens)

    scores = F.linear(tokens, router.weight)
    worst_chosen = scores.gather(1, chosen).min(dim=1).values
    assert weights.shape == chosen.shape == (20, 3)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(20))
    assert bool(((scores > worst_chosen.unsqueeze(1)).sum(dim=1) == 2).all())
    assert bool((weights.diff(dim=1) <= 0).all())


def test_experts_without_tokens_have_gradients_of_zero():
    layer = filled(RoutedExperts(SMALL))
    with torch.no_grad():
        layer.router.weight[2:] = -100.0  # tokens are positive: nobody wants these
    tokens = torch.rand(1, 16, 32, generator=torch.Generator().manual_seed(7))

    found = gradients(layer, layer(tokens))

    for name in ("experts.gate", "experts.up", "experts.down"):
        sizes = found[name].abs().sum(dim=(1, 2))
        assert bool((sizes[:2] > 0).all())
        assert bool((sizes[2:] == 0).all())


def test_every_token_passes_the_shared_experts():
    layer = filled(ExpertLayer(replace(SMALL, shared_expert_count=2)))
    tokens = torch.randn(1, 16, 32, generator=torch.Generator().manual_seed(9))

    assert layer.shared.gate.weight.shape == (2 * 32, 32)
    torch.testing.assert_close(layer(tokens), layer.routed(tokens) + layer.shared(tokens))


@pytest.mark.parametrize("head_size", [0, 6, 64])
@pytest.mark.parametrize(("expert_count", "dense_layer_count"), [(0, 0), (8, 0), (8, 1), (8, 4)])
def test_a_decoder_has_the_parameters_that_are_counted_and_dense_layers_first(
    head_size, expert_count, dense_layer_count
):
    workload = replace(
        SMALL,
        head_size=head_size,
        expert_count=expert_count,
        dense_layer_count=dense_layer_count,
    )
    model = build_decoder(
        workload, Stage(0, 1), torch.arange(32), device=torch.device("cpu"), dtype=torch.float32
    )

    counted = edge_weights(workload, first=True, last=True).total
    counted += sum(layer_weights(workload, n).total for n in range(workload.layer_count))
    assert sum(parameter.numel() for parameter in model.parameters()) == counted
    is_dense = [isinstance(block.feed_forward, FeedForward) for block in model.blocks]
    dense_count = dense_layer_count if expert_count else 4
    assert is_dense == [number < dense_count for number in range(4)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_the_experts_as_one_rank_does(train, layout):
    expected = train(REFERENCE).losses()

    run = train(LAYOUTS[layout])

    assert len(run.losses()) == 3
    assert run.losses() == pytest.approx(expected, rel=1e-4)
    if layout in SHARES:
        per_rank = [SMALL.expert_count // SHARES[layout]] * (EXPERT_LAYERS * MATRICES)
        held = [[one[0] for one in rank["expert_shapes"]] for rank in run.documents(".held.json")]
        assert held == [per_rank] * len(run.steps())


def test_ranks_whose_experts_nobody_wants_wait_for_no_one(train):
    """Each rank has one token for one expert, so that most exchanges are empty."""
    lonely = replace(SMALL, experts_per_token=1, sequence_length=1, global_batch=4)
    expected = train({"micro_batch": 4}, workload=lonely).losses()

    losses = train({"dp_shard": 4, "ep": 4, "micro_batch": 1}, workload=lonely).losses()

    assert losses == pytest.approx(expected, rel=1e-4)


def test_tokens_travel_in_the_trace_and_selective_checkpointing_sends_none_again(train):
    stay = train({"dp_shard": 2, "micro_batch": 4}, profiled_steps=1)
    travel = {
        kind: train(
            {"dp_shard": 2, "ep": 2, "micro_batch": 4, "activation_checkpointing": kind},
            profiled_steps=1,
        )
        for kind in Checkpointing
    }

    sent = {kind: run.counts(rank=1)["gloo:all_to_all"] for kind, run in travel.items()}
    counts, rows = 1, 2  # how many rows come; there and back
    assert stay.counts(rank=1)["gloo:all_to_all"] == 0
    assert sent[Checkpointing.NONE] == EXPERT_LAYERS * (counts + 2 * rows)
    assert sent[Checkpointing.SELECTIVE] == sent[Checkpointing.NONE]
    assert sent[Checkpointing.FULL] > sent[Checkpointing.NONE]
    expected = train(REFERENCE).losses()
    for run in (stay, *travel.values()):
        assert run.losses()[: len(expected)] == pytest.approx(expected, rel=1e-4)


@pytest.mark.filterwarnings("ignore")  # torch's tracer makes torch warn of the tracer
def test_a_compiled_layer_computes_the_same():
    layer = filled(ExpertLayer(SMALL))
    tokens = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(11))
    plain = layer(tokens)
    slopes = gradients(layer, plain)

    layer.compile(backend="aot_eager")

    torch.testing.assert_close(layer(tokens), plain)
    for name, gradient in gradients(layer, layer(tokens)).items():
        torch.testing.assert_close(gradient, slopes[name])


def test_experts_in_bf16_train_alike_wherever_they_are(train):
    workload = replace(SMALL, precision=Precision.BF16)
    expected = train(REFERENCE, workload=workload).losses()

    losses = train(LAYOUTS["ep2"], workload=workload).losses()

    assert losses[:2] == pytest.approx(expected[:2], rel=2e-2)
