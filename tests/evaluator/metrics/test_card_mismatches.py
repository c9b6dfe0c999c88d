"""Traces of another job than the card are told by what differs."""

import pytest

from evaluator.metrics.card_mismatches import mismatches
from evaluator.traces.model import Device, StepKind, TraceSet
from evaluator.traces.testing import rank_trace
from records.study import Environment
from records.workload import Workload
from tests.support.traces import named_cases

THREE = ((1, 0, 9), (2, 9, 20), (3, 20, 30))


def traces(device="NVIDIA H100 80GB HBM3", memory_bytes=None, **given):
    found = Device(name=device, memory_bytes=memory_bytes) if device else None
    told = {"steps": THREE, "world_size": 8, "device": found}
    return TraceSet(ranks=(rank_trace([], **(told | given)),))


def card(phase="training", **changed):
    given = {
        "name": "m",
        "device": "cuda",
        "accelerator": "nvidia_h100",
        "world_size": 8,
        "ranks_per_node": 8,
    }
    work = Workload(name="w", global_batch=8, sequence_length=128, phase=phase)
    return work, Environment(**(given | changed))


SERVER = {"kinds": (StepKind.PREFILL, StepKind.DECODE, StepKind.DECODE)}


@named_cases(
    ("seen", "asked"),
    {
        "the same": (traces(memory_bytes=85 * 10**9), card(memory_bytes=80 * 10**9)),
        "no card": (traces(), (None, None)),
        "a server of inference": (traces(**SERVER), card(phase="inference")),
        "a device that nobody knows": (traces("AMD Radeon Graphics"), card()),
    },
)
def test_traces_of_the_card_differ_in_nothing(seen, asked):
    assert mismatches(seen, *asked) == ()


@pytest.mark.parametrize(
    ("seen", "asked", "words"),
    [
        (traces(world_size=4), card(), "the traces are of 4 ranks, the card is of 8"),
        (
            traces("NVIDIA A100-SXM4-80GB"),
            card(),
            "the traces are of 'NVIDIA A100-SXM4-80GB', the card of nvidia_h100",
        ),
        (traces(), card(device="cpu", accelerator="EPYC"), "are of accelerators, the card is of C"),
        (
            traces(None),
            card(),
            "the traces show no work of an accelerator, the card is of nvidia_h",
        ),
        (
            traces(memory_bytes=40 * 10**9),
            card(memory_bytes=80 * 10**9),
            "the traced device has 40 GB of memory, that of the card 80 GB",
        ),
        (
            traces(**SERVER),
            card(),
            "the traces show a server's prefill and decode steps, the card is of training",
        ),
    ],
)
def test_what_differs_is_told(seen, asked, words):
    (told,) = mismatches(seen, *asked)
    assert words in told
