"""Requests are answered the same however they are spread, and their tokens' times are right."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from evaluator.evaluate import TrialEvaluator
from evaluator.rank.job import Config as RankConfig
from evaluator.rank.job import DeviceKind, Job, JobError, Measure, Workload
from evaluator.rank.main import RankContext
from evaluator.samples import TOLERANCE, other_work
from evaluator.workloads.inference import Inference, open_model, serve
from evaluator.workloads.parallelize import Layout
from records.study import Study
from records.trial import Config, Measured, Measurement
from tests.evaluator.conftest import OtherEntry, rank_workload

PROMPT, ANSWER, REQUESTS = 24, 6, 8
SMALL = rank_workload(
    layer_count=3,
    hidden_size=64,
    ffn_size=96,
    vocab_size=128,
    sequence_length=PROMPT,
    output_length=ANSWER,
    global_batch=REQUESTS,
)
EXPERTS = {
    "expert_count": 4,
    "experts_per_token": 2,
    "shared_expert_count": 1,
    "expert_ffn_size": 32,
    "dense_layer_count": 1,
}
MODELS = {"dense": {}, "experts": EXPERTS}
WHOLE = Config({"micro_batch": REQUESTS})
LAYOUTS = {
    "in_rounds": Config({"micro_batch": 2}),
    "attention_by_hand": Config({"attention_backend": "math", "micro_batch": REQUESTS}),
    "tp": Config({"tp": 2, "micro_batch": REQUESTS}),
    "dp": Config({"dp_replicate": 2, "micro_batch": REQUESTS // 2}),
    "dp_in_rounds": Config({"dp_replicate": 2, "micro_batch": 1}),
    "dp_tp_in_rounds": Config({"dp_replicate": 2, "tp": 2, "micro_batch": 2}),
}


def work_of(config: RankConfig, **changes: object) -> tuple[Inference, Job]:
    """A rank's work without a launch, and the job that it was made from."""
    job = Job(
        entry="evaluator.workloads.inference:serve",
        world_size=config.world_size,
        device=DeviceKind.CPU,
        init_method="env://",
        workload=replace(SMALL, **changes),
        config=config,
        measure=Measure(warmup_steps=0, timed_steps=1, profiled_steps=0),
    )
    device = torch.device("cpu")
    return serve(RankContext(rank=0, local_rank=0, device=device, job=job)), job


def sequences(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts with their answers but for the last token, and what follows each token."""
    shape = workload.global_batch, PROMPT + workload.output_length
    drawn = torch.randint(
        workload.vocab_size, shape, generator=torch.Generator().manual_seed(workload.seed)
    )
    return drawn[:, :-1], drawn[:, 1:]


@dataclass(frozen=True, slots=True)
class Launched:
    """A trial of an inference study, and what its ranks chose, by replica and round."""

    measured: Measured
    folder: Path

    @property
    def measurement(self) -> Measurement:
        return self.measured.measurement

    def choices(self, rank: int) -> list[list[list[int]]]:
        lines = (self.folder / f"rank{rank}.answers.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def answers(self, config: Config) -> list[list[list[int]]]:
        """Choices of each step, shaped (steps, requests, answer length)."""
        settings = {"dp_replicate": 1, "tp": 1, **config.values}
        replicas = [self.choices(rank * settings["tp"]) for rank in range(settings["dp_replicate"])]
        share = REQUESTS // settings["dp_replicate"]
        rounds = share // settings["micro_batch"]
        return [
            [
                answer
                for told in replicas
                for of_round in told[first : first + rounds]
                for answer in of_round
            ]
            for first in range(0, len(replicas[0]), rounds)
        ]


@pytest.fixture(scope="module")
def inference_study(study: Study) -> Study:
    sizes = ("layer_count", "hidden_size", "head_count", "kv_head_count", "ffn_size", "vocab_size")
    workload = replace(
        study.workload,
        phase="inference",
        sequence_length=PROMPT,
        output_length=ANSWER,
        global_batch=REQUESTS,
        **{size: getattr(SMALL, size) for size in sizes},
    )
    environment = replace(study.environment, world_size=4, ranks_per_node=4)
    return replace(study, workload=workload, environment=environment)


@pytest.fixture(scope="module")
def launched(launcher, inference_study, tmp_path_factory) -> Callable[..., Launched]:
    """Runs a configuration once."""
    finished: dict[object, Launched] = {}

    def launch(config: Config, *, profiled_steps: int = 0, **changes: object) -> Launched:
        key = (config, profiled_steps, *sorted(changes.items()))
        if key not in finished:
            study = replace(
                inference_study,
                workload=replace(inference_study.workload, **changes),
                measure=replace(inference_study.measure, profiled_steps=profiled_steps),
            )
            folder = tmp_path_factory.mktemp("trial")
            outcome = TrialEvaluator(
                OtherEntry("work_entries:tell_answers"), launcher, print
            ).evaluate(study, config, folder)
            assert isinstance(outcome, Measured), outcome
            finished[key] = Launched(outcome, folder)
        return finished[key]

    return launch


# What is answered.


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@torch.inference_mode()
def test_an_answer_is_what_reading_everything_again_would_give(model):
    work, job = work_of(RankConfig(micro_batch=REQUESTS), **model)
    tokens, targets = sequences(job.workload)
    whole = open_model(job, Layout(None), length=PROMPT + ANSWER - 1, device=torch.device("cpu"))

    answers = work.answer(tokens, targets)

    logits = whole(tokens)[:, PROMPT - 1 :]
    expected = F.cross_entropy(logits.transpose(1, 2), targets[:, PROMPT - 1 :], reduction="none")
    assert answers.choices.tolist() == logits.argmax(-1).tolist()
    torch.testing.assert_close(answers.losses, expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_round_knows_nothing_of_the_one_before():
    work, job = work_of(RankConfig(micro_batch=REQUESTS))
    tokens, targets = sequences(job.workload)
    first = work.answer(tokens, targets)

    work.answer(tokens.flip(0), targets.flip(0))

    assert work.answer(tokens, targets).losses.tolist() == first.losses.tolist()


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        *((layout, {}) for layout in (WHOLE, *LAYOUTS.values())),
        *((LAYOUTS[name], EXPERTS) for name in ("in_rounds", "dp_tp_in_rounds")),
    ],
    ids=["one_rank", *LAYOUTS, "experts_in_rounds", "experts_dp_tp_in_rounds"],
)
def test_every_layout_gives_the_same_answers_and_is_measured(launched, layout, model):
    expected = launched(WHOLE, **model)

    found = launched(layout, **model)

    measurement = found.measurement
    assert found.answers(layout) == expected.answers(WHOLE)
    assert measurement.losses == pytest.approx(expected.measurement.losses, rel=1e-5)
    values = {value.name: value.value for value in found.measured.metrics}
    assert measurement.tokens_per_step == REQUESTS * (PROMPT + ANSWER)
    assert 0 < values["ttft"] < values["step_time"]
    assert 0 < values["tpot"] < values["step_time"]
    assert values["output_tokens_per_s"] == pytest.approx(
        values["tokens_per_s"] * ANSWER / (PROMPT + ANSWER)
    )
    served, rank_count = measurement.serving, len(measurement.step_times_s)
    for times_s in (served.first_token_times_s, served.next_token_times_s):
        assert [len(steps) for steps in times_s] == [5] * rank_count


def test_ranks_that_share_a_replica_choose_the_same(launched):
    found = launched(LAYOUTS["dp_tp_in_rounds"])

    assert found.choices(0) == found.choices(1)
    assert found.choices(2) == found.choices(3)


def test_rounding_in_bf16_is_no_other_work(launched, inference_study):
    study = replace(inference_study, workload=replace(inference_study.workload, precision="bf16"))
    whole, sliced = (
        launched(config, precision="bf16").measurement for config in (WHOLE, LAYOUTS["tp"])
    )

    assert other_work(sliced, whole, study) is None


def read_one_place_too_early(work: Inference) -> None:
    plain_read = work._server.read

    def read(tokens: torch.Tensor) -> torch.Tensor:
        decoding = tokens.shape[1] == 1
        work._server._length -= decoding
        logits = plain_read(tokens)
        work._server._length += decoding
        return logits

    work._server.read = read


def swap_the_heads_of_the_first_layer(work: Inference) -> None:
    cache = work._server._caches[0]
    plain_attention = cache._attention
    cache._attention = lambda query, key, value: plain_attention(query, key.flip(1), value.flip(1))


def forget_the_first_token(work: Inference) -> None:
    for cache in work._server._caches:
        plain_attention = cache._attention
        cache._attention = lambda query, key, value, attend=plain_attention: (
            attend(query, key[:, :, 1:], value[:, :, 1:])
            if query.shape[2] == 1
            else attend(query, key, value)
        )


@pytest.mark.parametrize(
    "fault", [read_one_place_too_early, swap_the_heads_of_the_first_layer, forget_the_first_token]
)
def test_a_cache_that_is_wrong_shows_in_the_losses(launched, fault):
    expected = launched(WHOLE).measurement.losses
    work, _ = work_of(RankConfig(micro_batch=REQUESTS))
    fault(work)
    for step in range(len(expected)):
        work.step(step)

    losses = zip(work.global_losses(), expected, strict=True)

    assert max(abs(loss / expected - 1) for loss, expected in losses) > TOLERANCE["fp32"]


def test_axes_on_which_ranks_would_idle_are_refused():
    with pytest.raises(JobError, match="inference spreads over dp_replicate and tp only"):
        work_of(RankConfig(pp=2))


# What is measured.


def test_a_step_without_rounds_is_its_prefill_and_its_decode(launched):
    measurement = launched(LAYOUTS["tp"]).measurement

    served = measurement.serving
    both = zip(served.first_token_times_s[0], served.next_token_times_s[0], strict=True)
    parts_s = [first + (ANSWER - 1) * rest for first, rest in both]
    assert parts_s == pytest.approx(measurement.step_times_s[0], abs=1e-8)


def test_answers_of_one_token_have_no_time_per_further_token(launched):
    found = launched(WHOLE, output_length=1)

    assert found.measured.metric("ttft") > 0
    assert found.measured.metric("tpot") is None
    assert found.measured.metric("output_tokens_per_s") > 0


def test_a_trace_tells_prefill_from_decode(launched):
    found = launched(LAYOUTS["dp_in_rounds"], profiled_steps=1)

    rounds = REQUESTS // 2
    for rank in range(2):
        trace = (found.folder / f"rank{rank}_trace.json").read_bytes()
        events = json.loads(trace)["traceEvents"]
        marks = Counter(
            event["name"]
            for event in events
            if event["ph"] == "X" and event["name"] in ("prefill", "decode")
        )
        assert marks == {"prefill": rounds, "decode": rounds * (ANSWER - 1)}
    assert found.measured.breakdown.compute_s > 0
