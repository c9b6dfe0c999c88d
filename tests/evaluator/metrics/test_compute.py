"""FLOP of models, peaks of devices and what both come to, against numbers worked out by hand."""

from dataclasses import replace

import pytest

from evaluator.accelerators import ACCELERATORS, accelerator, peak_flops_per_s
from evaluator.metrics.base import Absent
from evaluator.metrics.compute import active_parameters, flops_per_token
from evaluator.traces.model import Activity, Device, StepKind
from evaluator.traces.testing import Span, rank_trace
from records.study import Environment
from records.workload import MODELS, Workload
from tests.support.traces import named_cases, value_of


def workload(model="llama-3.1-8b", **changed):
    sizes = {key: size for key, size in MODELS[model].sizes.items() if key != "family"}
    given = {"name": model, "global_batch": 64, "sequence_length": 4096, "precision": "bf16"}
    return Workload(**(given | sizes | changed))


LLAMA = 8_030_261_248 - 128256 * 4096


@named_cases(
    ("asked", "active"),
    {
        "dense": (workload("llama-3.1-8b"), LLAMA),
        "one table": (workload("llama-3.2-1b"), 1_235_814_400),
        "experts": (workload("mixtral-8x7b"), 12_879_925_248 - 32000 * 4096),
        "told by its parameters": (replace(workload(), ffn_size=None), LLAMA),
        "sizes missing": (
            replace(workload(), ffn_size=None, head_count=None, parameter_count=None),
            Absent("the workload does not say its head_count, ffn_size"),
        ),
        "no experts": (
            replace(workload("mixtral-8x7b"), experts_per_token=None),
            Absent("the workload does not say its experts_per_token"),
        ),
    },
)
def test_counted_parameters_are_those_of_the_original(asked, active):
    expected = active if isinstance(active, Absent) else pytest.approx(active, rel=1e-4)
    assert active_parameters(asked) == expected


def test_training_costs_three_forward_passes_and_answers_are_part_of_the_sequence():
    attention = 32 * 4096 * 4096
    assert flops_per_token(workload()) == pytest.approx(6 * LLAMA + 12 * attention, rel=1e-4)
    served = workload(phase="inference")
    assert flops_per_token(served) == pytest.approx(2 * LLAMA + 4 * attention, rel=1e-4)
    answered = workload(phase="inference", sequence_length=100, output_length=28)
    longer = workload(phase="inference", sequence_length=128)
    assert flops_per_token(answered) == flops_per_token(longer)


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
        *((name, None, None) for name in ("", "cpu", "AMD EPYC 9654", "AMD Radeon Graphics")),
        *((name, None, None) for name in ("NVIDIA H1000", "NVIDIA A10G")),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, None),
    ],
)
def test_devices_are_known_in_their_usual_spellings_and_others_not_guessed(
    name, known, bf16_tflops
):
    found = accelerator(name)
    assert (found and found.name) == known
    if found:
        assert peak_flops_per_s(found, "bfloat16") == pytest.approx(bf16_tflops * 1e12)


def test_every_accelerator_is_found_by_its_own_name():
    for known in ACCELERATORS:
        assert accelerator(known.name) is known
        assert 0.1 < known.memory_tb_s < 10
        assert accelerator(f"Maker {known.name.replace(' ', '_').lower()} edition") is known


def test_a_precision_that_a_device_lacks_has_no_peak():
    assert peak_flops_per_s(accelerator("Tesla V100-SXM2-32GB"), "bf16") is None
    assert peak_flops_per_s(accelerator("H100"), "int3") is None


PER_TOKEN = 6 * LLAMA + 12 * 32 * 4096 * 4096
RATE = PER_TOKEN * 64 * 4096 / 2.0 / 8
TIMED = {"step_times_s": (2.0, 2.0, 9.0), "tokens_per_step": 64 * 4096, "rank_count": 8}
B200 = rank_trace([], steps=[(1, 0, 10**11)], world_size=1, device=Device(name="NVIDIA B200"))
SERVER = rank_trace([], steps=[(1, 0, 9)], kinds=[StepKind.DECODE], world_size=1)
TPU = rank_trace(
    [
        Span(Activity.COMPUTE, start, start + 50, flops=flops)
        for start, flops in ((0, 1e6), (150, 2e6), (250, 4e6), (300, 8e6))
    ],
    steps=[(1, 100, 200), (2, 200, 300)],
    device=Device(name="TPU v6 lite"),
)


def card(accelerator_name, **changed):
    named = {"name": "m", "device": "cuda", "accelerator": accelerator_name}
    machine = Environment(**named, world_size=8, ranks_per_node=8)
    return {"workload": workload(**changed), "environment": machine}


@pytest.mark.parametrize(
    ("name", "trace", "given", "expected"),
    [
        ("mfu", None, TIMED | card("nvidia_h100"), RATE / 989.4e12),
        ("achieved_tflops", None, TIMED | card("nvidia_h100"), RATE / 1e12),
        ("mfu", B200, card("nvidia_h100"), PER_TOKEN * 64 * 4096 / 100 / 2250e12),
        (
            "mfu",
            None,
            TIMED | card("AMD EPYC 9654"),
            "the peak of 'AMD EPYC 9654' is not known; name a known accelerator as accelerator in "
            "[environment], or in the card",
        ),
        ("achieved_tflops", None, TIMED | card("AMD EPYC 9654"), RATE / 1e12),
        (
            "mfu",
            None,
            TIMED | {"step_times_s": (0.1,)} | card("nvidia_h100", precision="fp32"),
            "the model needs 252 times the FLOP/s that a device has at 'fp32'; precision, batch "
            "or device of the card are wrong",
        ),
        (
            "mfu",
            None,
            TIMED
            | {"step_times_s": (4.0,), "compute_precision": "tf32"}
            | card("nvidia_h100", precision="fp32"),
            RATE / 2 / 494.7e12,
        ),
        (
            "mfu",
            None,
            {"step_times_s": (2.0,)},
            "the model that ran is unknown; give its card",
        ),
        (
            "mfu",
            SERVER,
            {"workload": workload()},
            "the profiled steps are those of a server, not of the workload",
        ),
        ("achieved_tflops", TPU, {}, 6e6 / 200e-9 / 1e12),
        ("mfu", TPU, {}, 6e6 / 200e-9 / 918e12),
    ],
    ids=[
        "utilization of a timed job",
        "its rate",
        "the device that ran counts more than the one of the card",
        "a device that is not known is named and how to give it",
        "its rate needs no peak",
        "more than the peak is no utilization",
        "the peak is that of the format in which matrices were multiplied",
        "without a card there is no model",
        "steps of a server are not those of the workload",
        "operations that tell their flop need no card",
        "nor for their utilization",
    ],
)
def test_utilization_is_what_the_model_needs_over_what_the_device_can(name, trace, given, expected):
    value = expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-4)
    assert value_of(name, trace, **given) == value
