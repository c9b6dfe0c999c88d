"""FLOP of models, peaks of devices and what both come to, against numbers worked out by hand."""

from dataclasses import replace

import pytest

from evaluator.accelerators import ACCELERATORS, accelerator, peak_flops_per_s
from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.compute import active_parameters, flops_per_token
from evaluator.metrics.registry import measure, metric
from evaluator.traces.model import Activity, Device, StepKind, TraceSet
from evaluator.traces.testing import Span, rank_trace
from records.study import Environment
from records.workload import MODELS, Workload


def workload(model="llama-3.1-8b", **changed):
    sizes = {key: size for key, size in MODELS[model].sizes.items() if key != "family"}
    given = {"name": model, "global_batch": 64, "sequence_length": 4096, "precision": "bf16"}
    return Workload(**(given | sizes | changed))


def machine(accelerator_name, world_size=8):
    return Environment(
        name="m",
        device="cuda",
        accelerator=accelerator_name,
        world_size=world_size,
        ranks_per_node=8,
    )


def answer(name, **given):
    found = measure(metric(name), Evidence(**given))
    return found.reason if isinstance(found, Absent) else found.value


# What a model needs.


@pytest.mark.parametrize(
    ("model", "active"),
    [
        ("llama-3.1-8b", 8_030_261_248 - 128256 * 4096),
        ("llama-3.2-1b", 1_235_814_400),  # its one table is its head too
        ("mixtral-8x7b", 12_879_925_248 - 32000 * 4096),
    ],
)
def test_counted_parameters_are_those_of_the_original(model, active):
    assert active_parameters(workload(model)) == pytest.approx(active, rel=1e-4)


def test_a_model_of_unknown_sizes_is_told_by_its_parameters():
    told = replace(workload(), ffn_size=None)
    assert active_parameters(told) == 8_030_261_248 - 128256 * 4096


def test_what_is_missing_is_named():
    told = replace(workload(), ffn_size=None, head_count=None, parameter_count=None)
    assert active_parameters(told) == Absent("the workload does not say its head_count, ffn_size")
    experts = replace(workload("mixtral-8x7b"), experts_per_token=None)
    assert active_parameters(experts) == Absent("the workload does not say its experts_per_token")


def test_training_costs_three_forward_passes():
    n, attention = 8_030_261_248 - 128256 * 4096, 32 * 4096 * 4096
    assert flops_per_token(workload()) == pytest.approx(6 * n + 12 * attention, rel=1e-4)
    served = workload(phase="inference")
    assert flops_per_token(served) == pytest.approx(2 * n + 4 * attention, rel=1e-4)


def test_an_answer_is_part_of_the_sequence_that_attention_sees():
    served = workload(phase="inference", sequence_length=100, output_length=28)
    longer = workload(phase="inference", sequence_length=128)
    assert flops_per_token(served) == flops_per_token(longer)


# What a device can do.


@pytest.mark.parametrize(
    ("name", "known", "bf16_tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 989.4),
        ("nvidia_h100", "H100", 989.4),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756),
        ("NVIDIA H100 NVL", "H100 NVL", 835.5),
        ("NVIDIA H200", "H200", 989.4),
        ("NVIDIA B200", "B200", 2250),
        ("NVIDIA GB200", "GB200", 2500),
        ("NVIDIA GH200 480GB", "GH200", 989.4),
        ("NVIDIA A100-PG509-200", "A100", 312),
        ("nvidia_a100_40gb", "A100", 312),
        ("AMD Instinct MI300X VF", "MI300X", 1307.4),
        ("AMD Instinct MI250X", "MI250X", 191.5),
        ("AMD Instinct MI210", "MI210", 181),
        ("TPU v5 lite", "TPU v5e", 197),
        ("TPU v5p", "TPU v5p", 459),
        ("tpu_v6e", "TPU v6e", 918),
        ("NVIDIA L40S", "L40S", 362),
    ],
)
def test_devices_are_known_in_their_usual_spellings(name, known, bf16_tflops):
    found = accelerator(name)
    assert found.name == known
    assert peak_flops_per_s(found, "bfloat16") == pytest.approx(bf16_tflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "AMD EPYC 9654",
        "AMD Radeon Graphics",
        "NVIDIA H1000",
        "NVIDIA A10G",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    ],
)
def test_other_devices_are_not_guessed(name):
    assert accelerator(name) is None


@pytest.mark.parametrize("known", ACCELERATORS, ids=lambda known: known.name)
def test_every_accelerator_is_found_by_its_own_name(known):
    assert accelerator(known.name) is known
    assert accelerator(f"Maker {known.name.replace(' ', '_').lower()} edition") is known


def test_a_precision_that_a_device_lacks_has_no_peak():
    assert peak_flops_per_s(accelerator("Tesla V100-SXM2-32GB"), "bf16") is None
    assert peak_flops_per_s(accelerator("H100"), "int3") is None


# Both.

PER_TOKEN = 6 * (8_030_261_248 - 128256 * 4096) + 12 * 32 * 4096 * 4096


def test_utilization_of_a_timed_job():
    given = {"step_times_s": (2.0, 2.0, 9.0), "tokens_per_step": 64 * 4096, "rank_count": 8}
    card = {"workload": workload(), "environment": machine("nvidia_h100")}
    rate = PER_TOKEN * 64 * 4096 / 2.0 / 8
    assert answer("mfu", **given, **card) == pytest.approx(rate / 989.4e12, rel=1e-4)
    assert answer("achieved_tflops", **given, **card) == pytest.approx(rate / 1e12, rel=1e-4)


def test_the_device_that_ran_counts_more_than_the_one_of_the_card():
    trace = rank_trace([], steps=[(1, 0, 10**11)], world_size=1, device=Device(name="NVIDIA B200"))
    card = {"workload": workload(), "environment": machine("nvidia_h100")}
    found = answer("mfu", traces=TraceSet(ranks=(trace,)), **card)
    assert found == pytest.approx(PER_TOKEN * 64 * 4096 / 100 / 2250e12, rel=1e-4)


def test_a_device_that_is_not_known_is_named_and_how_to_give_it():
    given = {"step_times_s": (2.0,), "tokens_per_step": 4096, "rank_count": 1}
    card = {"workload": workload(), "environment": machine("AMD EPYC 9654")}
    assert answer("mfu", **given, **card) == (
        "the peak of 'AMD EPYC 9654' is not known; name a known accelerator as accelerator in "
        "[environment], or in the card"
    )
    assert answer("achieved_tflops", **given, **card) > 0


def test_more_than_the_peak_is_no_utilization():
    given = {"step_times_s": (0.1,), "tokens_per_step": 64 * 4096, "rank_count": 8}
    card = {"workload": workload(precision="fp32"), "environment": machine("nvidia_h100")}
    found = answer("mfu", **given, **card)
    assert found.startswith("the model needs 252 times the FLOP/s that a device has at 'fp32'")


def test_without_a_card_there_is_no_model():
    assert answer("mfu", step_times_s=(2.0,)) == "the model that ran is unknown; give its card"


def test_steps_of_a_server_are_not_those_of_the_workload():
    trace = rank_trace([], steps=[(1, 0, 9)], kinds=[StepKind.DECODE], world_size=1)
    found = answer("mfu", traces=TraceSet(ranks=(trace,)), workload=workload())
    assert found == "the profiled steps are those of a server, not of the workload"


def test_operations_that_tell_their_flop_need_no_card():
    spans = [
        Span(Activity.COMPUTE, start, start + 50, flops=flops)
        for start, flops in ((0, 1e6), (150, 2e6), (250, 4e6), (300, 8e6))
    ]
    tpu = rank_trace(spans, steps=[(1, 100, 200), (2, 200, 300)], device=Device(name="TPU v6 lite"))
    traces = TraceSet(ranks=(tpu,))
    assert answer("achieved_tflops", traces=traces) == pytest.approx(6e6 / 200e-9 / 1e12)
    assert answer("mfu", traces=traces) == pytest.approx(6e6 / 200e-9 / 918e12)
